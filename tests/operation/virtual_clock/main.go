// virtual_clock evaluates rule files over generated scrapes, on a clock of its own, with the packages of Prometheus
// itself: TSDB, PromQL engine and rule groups. Alerts have their `for`, `keep_firing_for` and staleness; after a stop of
// Prometheus, alerts are restored as Prometheus restores them.
//
// Usage: virtual_clock PERIOD.json 'RULES/*.yaml' DATA-FOLDER [BLOCKS-FOLDER] >ALERTS.jsonl
//
// With BLOCKS-FOLDER, all samples, recorded series and alerts are written there, for a Prometheus to serve.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"sort"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
)

// Period is what tests/operation/encode.py writes: the values of every series at each scrape.
type Period struct {
	Start   int64       // Unix time of the first scrape, a multiple of Step
	Step    int64       // seconds between two scrapes
	Ticks   int         // number of scrapes
	Loads   [][]float64 // sequences that parts refer to
	Series  []*Series
	Stopped [][2]int // Prometheus does not run from one tick to the other
}

// Series has its values as parts, one after another.
type Series struct {
	Labels map[string]string
	Parts  []Part

	labels  labels.Labels
	offset  int64 // milliseconds after the tick at which its target is scraped
	ref     storage.SeriesRef
	value   float64 // of this tick
	there   bool    // has a value at this tick
	present bool    // was there at the last scrape
	part    int
	done    int
	total   float64
}

// Part is [ticks, kind, a, b]: see next.
type Part [4]float64

const (
	absent   = iota
	line     // a + b * tick
	sequence // b * Loads[a], repeated
	constantRate
	sequenceRate // a counter that grows by b * Loads[a]
	reboot       // absent, and counters start again at 0
)

// next returns the value at the next tick, and whether there is one.
func (s *Series) next(loads [][]float64) (float64, bool) {
	for s.part < len(s.Parts) && s.done == int(s.Parts[s.part][0]) {
		s.part, s.done = s.part+1, 0
	}
	if s.part == len(s.Parts) {
		return 0, false
	}
	p, n := s.Parts[s.part], s.done
	s.done++
	load := func() float64 { l := loads[int(p[2])]; return p[3] * l[n%len(l)] }
	switch int(p[1]) {
	case line:
		return p[2] + p[3]*float64(n), true
	case sequence:
		return load(), true
	case constantRate:
		s.total += p[2]
		return s.total, true
	case sequenceRate:
		s.total += load()
		return s.total, true
	case reboot:
		s.total = 0
	}
	return 0, false
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "virtual_clock:", err)
		os.Exit(1)
	}
}

func hash(text string, below int64) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return int64(h.Sum64() % uint64(below))
}

func read(path string) *Period {
	content, err := os.ReadFile(path)
	check(err)
	period := &Period{}
	check(json.Unmarshal(content, period))
	for _, s := range period.Series {
		s.labels = labels.FromMap(s.Labels)
		s.offset = hash(s.Labels["job"]+s.Labels["instance"], period.Step*1000)
	}
	return period
}

// Group is a rule group; Prometheus restores its alerts after the second evaluation.
type Group struct {
	*rules.Group
	interval, offset int64
	evaluations      int
}

// Clock runs scrapes and rule groups at their times.
type Clock struct {
	period  *Period
	db      *tsdb.DB
	options *rules.ManagerOptions
	files   []string
	groups  []*Group
	firing  map[string]labels.Labels
	out     *json.Encoder
}

// start loads the rules, as a Prometheus that starts does: it knows no series and no alerts of before.
func (c *Clock) start() {
	c.groups = nil
	for _, file := range c.files {
		parsed, errs := rulefmt.ParseFile(file)
		for _, err := range errs {
			check(err)
		}
		for _, g := range parsed.Groups {
			c.groups = append(c.groups, c.group(file, g))
		}
	}
	for _, s := range c.period.Series {
		s.present = false
	}
}

func (c *Clock) group(file string, g rulefmt.RuleGroup) *Group {
	interval := time.Duration(g.Interval)
	if interval == 0 {
		interval = time.Minute
	}
	var all []rules.Rule
	for _, r := range g.Rules {
		expr, err := parser.ParseExpr(r.Expr.Value)
		check(err)
		if r.Alert.Value == "" {
			all = append(all, rules.NewRecordingRule(r.Record.Value, expr, labels.FromMap(r.Labels)))
			continue
		}
		all = append(all, rules.NewAlertingRule(r.Alert.Value, expr, time.Duration(r.For), time.Duration(r.KeepFiringFor),
			labels.FromMap(r.Labels), labels.EmptyLabels(), nil, "", false, log.NewNopLogger()))
	}
	made := rules.NewGroup(rules.GroupOptions{
		Name: g.Name, File: file, Interval: interval, Rules: all, ShouldRestore: true, Opts: c.options,
	})
	milliseconds := interval.Milliseconds()
	return &Group{made, milliseconds, hash(g.Name, milliseconds), 0}
}

// scrape appends the values of one tick, or staleness markers for series that have ended.
func (c *Clock) scrape(series []*Series, at int64) {
	appender := c.db.Appender(context.Background())
	for _, s := range series {
		v := s.value
		if !s.there {
			if !s.present {
				continue
			}
			v = math.Float64frombits(value.StaleNaN)
		}
		s.present = s.there
		ref, err := appender.Append(s.ref, s.labels, at, v)
		check(err)
		s.ref = ref
	}
	check(appender.Commit())
}

func (c *Clock) evaluate(g *Group, at int64) {
	now := time.UnixMilli(at)
	g.Eval(context.Background(), now)
	g.evaluations++
	if g.evaluations == 2 {
		g.RestoreForState(now)
	}
	for _, r := range g.Rules() {
		if r.LastError() != nil {
			check(fmt.Errorf("rule %s: %w", r.Name(), r.LastError()))
		}
	}
}

// report writes each alert that has begun or ended to fire.
func (c *Clock) report(at int64) {
	now := map[string]labels.Labels{}
	for _, g := range c.groups {
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					now[a.Labels.String()] = a.Labels
				}
			}
		}
	}
	for key, l := range now {
		if c.firing[key] == nil {
			check(c.out.Encode(map[string]any{"at": at / 1000, "fires": true, "labels": l.Map()}))
		}
	}
	for key, l := range c.firing {
		if now[key] == nil {
			check(c.out.Encode(map[string]any{"at": at / 1000, "fires": false, "labels": l.Map()}))
		}
	}
	c.firing = now
}

// event is one scrape of all targets with the same offset, or one evaluation of a group.
type event struct {
	at  int64
	run func(at int64)
}

func (c *Clock) tick(n int, targets map[int64][]*Series) {
	from, length := (c.period.Start+int64(n)*c.period.Step)*1000, c.period.Step*1000
	var events []event
	for offset, series := range targets {
		series := series
		events = append(events, event{from + offset, func(at int64) { c.scrape(series, at) }})
	}
	for _, g := range c.groups {
		g := g
		at := from - from%g.interval + g.offset
		if at >= from && at < from+length {
			events = append(events, event{at, func(at int64) { c.evaluate(g, at) }})
		}
	}
	sort.Slice(events, func(a, b int) bool { return events[a].at < events[b].at })
	for _, e := range events {
		e.run(e.at)
	}
	c.report(from + length)
}

func (c *Clock) stopped(n int) bool {
	for _, s := range c.period.Stopped {
		if n >= s[0] && n < s[1] {
			return true
		}
	}
	return false
}

func (c *Clock) run() {
	targets := map[int64][]*Series{}
	for _, s := range c.period.Series {
		targets[s.offset] = append(targets[s.offset], s)
	}
	running, begun := false, time.Now()
	for n := 0; n < c.period.Ticks; n++ {
		for _, s := range c.period.Series {
			s.value, s.there = s.next(c.period.Loads)
		}
		runs := !c.stopped(n)
		if runs && !running {
			c.start()
		}
		if runs {
			c.tick(n, targets)
		}
		running = runs
		if perDay := 86400 / int(c.period.Step); n%perDay == perDay-1 {
			fmt.Fprintf(os.Stderr, "day %d after %.0f s\n", n/perDay+1, time.Since(begun).Seconds())
		}
	}
}

func main() {
	if len(os.Args) != 4 && len(os.Args) != 5 {
		check(fmt.Errorf("usage: virtual_clock PERIOD.json 'RULES/*.yaml' DATA-FOLDER [BLOCKS-FOLDER]"))
	}
	files, err := filepath.Glob(os.Args[2])
	check(err)
	sort.Strings(files)
	settings := tsdb.DefaultOptions()
	settings.RetentionDuration = (48 * time.Hour).Milliseconds()
	settings.NoLockfile = true
	settings.WALSegmentSize = -1
	db, err := tsdb.Open(os.Args[3], log.NewNopLogger(), nil, settings, nil)
	check(err)
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: 2 * time.Minute, LookbackDelta: 5 * time.Minute,
		EnableAtModifier: true, EnableNegativeOffset: true,
	})
	options := &rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, db), Context: context.Background(), Appendable: db, Queryable: db,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: log.NewNopLogger(),
		OutageTolerance: time.Hour, ForGracePeriod: 10 * time.Minute, ResendDelay: time.Minute,
		Metrics: rules.NewGroupMetrics(nil),
	}
	out := bufio.NewWriter(os.Stdout)
	clock := &Clock{period: read(os.Args[1]), db: db, options: options, files: files, out: json.NewEncoder(out)}
	clock.run()
	check(out.Flush())
	if len(os.Args) == 5 {
		check(db.Snapshot(os.Args[4], true))
	}
	check(db.Close())
}
