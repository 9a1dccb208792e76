// virtual_clock evaluates rule files over generated scrapes, on a clock of its own, with the packages of Prometheus
// itself: TSDB, PromQL engine and rule groups. Alerts have their `for`, `keep_firing_for` and staleness; after a stop of
// Prometheus, alerts are restored as Prometheus restores them.
//
// Usage: virtual_clock PERIOD.json 'RULES/*.yaml' DATA-FOLDER [BLOCKS-FOLDER | FIRST END] >ALERTS.jsonl
//
// With BLOCKS-FOLDER, all samples, recorded series and alerts are written there, for a Prometheus to serve. With FIRST
// and END it runs only these scrapes (without END). Series have the values that they would have had in a whole run, but
// Prometheus has seen nothing before.
//
// If the period has Levels, shards scrape its series and forward recorded ones to a Prometheus above them, which
// evaluates RULES. Only that one's samples are written to BLOCKS-FOLDER.
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
	"strconv"
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
	Levels  *Levels
	Aligned bool // all targets are scraped at the tick, and then all groups are evaluated, in order
}

// Levels are shards below a Prometheus, which share the rules in Rules and forward the series named in Forwarded.
type Levels struct {
	Rules     string
	Forwarded []string
	Shards    []Shard
}

// Shard has a clock that is Ahead by seconds. What it forwards arrives Late by seconds.
type Shard struct {
	Ahead   int64
	Late    int64
	Stopped [][2]int
}

// Series has its values as parts, one after another.
type Series struct {
	Labels map[string]string
	Parts  []Part
	Shard  int // the number of the shard that scrapes it, from 1; 0 for the Prometheus above

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
		if !period.Aligned {
			s.offset = hash(s.Labels["job"]+s.Labels["instance"], period.Step*1000)
		}
	}
	return period
}

// Group is a rule group; Prometheus restores its alerts after the second evaluation.
type Group struct {
	*rules.Group
	interval, offset int64
	evaluations      int
}

// Server is one Prometheus.
type Server struct {
	db      *tsdb.DB
	options *rules.ManagerOptions
	files   []string
	groups  []*Group
	series  []*Series
	targets map[int64][]*Series
	ahead   int64 // milliseconds
	aligned bool
	stopped [][2]int
	running bool
	sends   *forwarder
	alerts  map[string]labels.Labels // that fire; while it is stopped, those of before
}

// newServer returns a Prometheus with its data in a folder. With a forwarder, what it records is forwarded, too.
func newServer(folder, pattern string, series []*Series, stopped [][2]int, sends *forwarder) *Server {
	files, err := filepath.Glob(pattern)
	check(err)
	sort.Strings(files)
	settings := tsdb.DefaultOptions()
	settings.RetentionDuration = (48 * time.Hour).Milliseconds()
	settings.NoLockfile = true
	settings.WALSegmentSize = -1
	db, err := tsdb.Open(folder, log.NewNopLogger(), nil, settings, nil)
	check(err)
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 50_000_000, Timeout: 2 * time.Minute, LookbackDelta: 5 * time.Minute,
		EnableAtModifier: true, EnableNegativeOffset: true,
	})
	var appendable storage.Appendable = db
	if sends != nil {
		sends.Appendable, appendable = db, sends
	}
	options := &rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, db), Context: context.Background(), Appendable: appendable, Queryable: db,
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: log.NewNopLogger(),
		OutageTolerance: time.Hour, ForGracePeriod: 10 * time.Minute, ResendDelay: time.Minute,
		Metrics: rules.NewGroupMetrics(nil),
	}
	server := &Server{db: db, options: options, files: files, series: series, stopped: stopped, sends: sends}
	server.targets = map[int64][]*Series{}
	for _, s := range series {
		server.targets[s.offset] = append(server.targets[s.offset], s)
	}
	return server
}

// start loads the rules, as a Prometheus that starts does: it knows no series and no alerts of before.
func (p *Server) start() {
	p.groups = nil
	for _, file := range p.files {
		parsed, errs := rulefmt.ParseFile(file)
		for _, err := range errs {
			check(err)
		}
		for _, g := range parsed.Groups {
			p.groups = append(p.groups, p.group(file, g))
		}
	}
	for _, s := range p.series {
		s.present = false
	}
}

func (p *Server) group(file string, g rulefmt.RuleGroup) *Group {
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
		Name: g.Name, File: file, Interval: interval, Rules: all, ShouldRestore: true, Opts: p.options,
	})
	milliseconds := interval.Milliseconds()
	offset := int64(0)
	if !p.aligned {
		offset = hash(g.Name, milliseconds)
	}
	return &Group{made, milliseconds, offset, 0}
}

// scrape appends the values of one tick, or staleness markers for series that have ended.
func (p *Server) scrape(series []*Series, at int64) {
	appender := p.db.Appender(context.Background())
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

func (p *Server) evaluate(g *Group, at int64) {
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

// events are the scrapes and evaluations from a time, for some milliseconds.
func (p *Server) events(from, length int64) []event {
	var found []event
	for offset, series := range p.targets {
		series := series
		found = append(found, event{from + offset, func(at int64) { p.scrape(series, at+p.ahead) }})
	}
	for _, g := range p.groups {
		g := g
		at := from - from%g.interval + g.offset
		if at >= from && at < from+length {
			found = append(found, event{at, func(at int64) { p.evaluate(g, at+p.ahead) }})
		}
	}
	return found
}

func (p *Server) firing() map[string]labels.Labels {
	found := map[string]labels.Labels{}
	for _, g := range p.groups {
		for _, r := range g.AlertingRules() {
			for _, a := range r.ActiveAlerts() {
				if a.State == rules.StateFiring {
					found[a.Labels.String()] = a.Labels
				}
			}
		}
	}
	return found
}

func runs(n int, stopped [][2]int) bool {
	for _, s := range stopped {
		if n >= s[0] && n < s[1] {
			return false
		}
	}
	return true
}

// forwarder passes recorded samples on, as remote write does: also staleness markers.
type forwarder struct {
	storage.Appendable
	names map[string]bool
	late  int64
	queue []sample
}

type sample struct {
	labels labels.Labels
	at     int64
	value  float64
}

type forwardingAppender struct {
	storage.Appender
	sends *forwarder
}

func (f *forwarder) Appender(ctx context.Context) storage.Appender {
	return &forwardingAppender{f.Appendable.Appender(ctx), f}
}

func (a *forwardingAppender) Append(ref storage.SeriesRef, l labels.Labels, t int64, v float64) (storage.SeriesRef, error) {
	if a.sends.names[l.Get(labels.MetricName)] {
		a.sends.queue = append(a.sends.queue, sample{l, t, v})
	}
	return a.Appender.Append(ref, l, t, v)
}

// arrive appends what has arrived by a time.
func (f *forwarder) arrive(db *tsdb.DB, now int64) {
	n := 0
	for n < len(f.queue) && f.queue[n].at+f.late <= now {
		n++
	}
	if n == 0 {
		return
	}
	appender := db.Appender(context.Background())
	for _, s := range f.queue[:n] {
		_, err := appender.Append(0, s.labels, s.at, s.value)
		check(err)
	}
	check(appender.Commit())
	f.queue = append([]sample{}, f.queue[n:]...)
}

// Clock runs scrapes and rule groups at their times. Shards come before the Prometheus above them.
type Clock struct {
	period  *Period
	servers []*Server
	firing  map[string]labels.Labels
	out     *json.Encoder
}

// report writes each alert that has begun or ended to fire.
func (c *Clock) report(at int64) {
	now := map[string]labels.Labels{}
	for _, p := range c.servers {
		if p.running {
			p.alerts = p.firing()
		}
		for key, l := range p.alerts {
			now[key] = l
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

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

// event is one scrape of all targets with the same offset, or one evaluation of a group.
type event struct {
	at  int64
	run func(at int64)
}

func (c *Clock) tick(n int) {
	from, length := (c.period.Start+int64(n)*c.period.Step)*1000, c.period.Step*1000
	var events []event
	for _, p := range c.servers {
		if p.running {
			events = append(events, p.events(from, length)...)
		}
	}
	sort.SliceStable(events, func(a, b int) bool { return events[a].at < events[b].at })
	for _, e := range events {
		for _, p := range c.servers {
			if p.sends != nil {
				p.sends.arrive(c.servers[len(c.servers)-1].db, e.at)
			}
		}
		e.run(e.at)
	}
	c.report(from + length)
}

func (c *Clock) run(first, end int) {
	begun := time.Now()
	for n := 0; n < end; n++ {
		for _, s := range c.period.Series {
			s.value, s.there = s.next(c.period.Loads)
		}
		for _, p := range c.servers {
			now := n >= first && runs(n, p.stopped)
			if now && !p.running {
				p.start()
			}
			p.running = now
		}
		if n >= first {
			c.tick(n)
		}
		if perDay := 86400 / int(c.period.Step); n%perDay == perDay-1 {
			fmt.Fprintf(os.Stderr, "day %d after %.0f s\n", n/perDay+1, time.Since(begun).Seconds())
		}
	}
}

// servers returns the shards of a period, if it has any, and the Prometheus that evaluates the rules of the caller.
func servers(period *Period, pattern, folder string) []*Server {
	var found []*Server
	of := map[int][]*Series{}
	for _, s := range period.Series {
		of[s.Shard] = append(of[s.Shard], s)
	}
	if levels := period.Levels; levels != nil {
		names := map[string]bool{}
		for _, name := range levels.Forwarded {
			names[name] = true
		}
		for n, shard := range levels.Shards {
			sends := &forwarder{names: names, late: shard.Late * 1000}
			below := newServer(fmt.Sprintf("%s-%d", folder, n+1), levels.Rules, of[n+1], shard.Stopped, sends)
			below.ahead = shard.Ahead * 1000
			found = append(found, below)
		}
	}
	found = append(found, newServer(folder, pattern, of[0], period.Stopped, nil))
	for _, p := range found {
		p.aligned = period.Aligned
	}
	return found
}

func main() {
	if len(os.Args) < 4 || len(os.Args) > 6 {
		check(fmt.Errorf("usage: virtual_clock PERIOD.json 'RULES/*.yaml' DATA-FOLDER [BLOCKS-FOLDER | FIRST END]"))
	}
	period := read(os.Args[1])
	out := bufio.NewWriter(os.Stdout)
	clock := &Clock{period: period, servers: servers(period, os.Args[2], os.Args[3]), out: json.NewEncoder(out)}
	first, end := 0, clock.period.Ticks
	if len(os.Args) == 6 {
		for place, number := range []*int{&first, &end} {
			parsed, err := strconv.Atoi(os.Args[4+place])
			check(err)
			*number = min(parsed, clock.period.Ticks)
		}
	}
	clock.run(first, end)
	check(out.Flush())
	if len(os.Args) == 5 {
		check(clock.servers[len(clock.servers)-1].db.Snapshot(os.Args[4], true))
	}
	for _, p := range clock.servers {
		check(p.db.Close())
	}
}
