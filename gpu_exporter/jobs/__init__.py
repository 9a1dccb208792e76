"""What training loops send to the exporter: step times, throughput and phases of each rank."""
