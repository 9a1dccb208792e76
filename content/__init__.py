"""What only maintainers render: dashboards, pages of the documentation, and the chart. It is not in the wheel."""
