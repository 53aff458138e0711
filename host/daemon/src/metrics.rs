//! Counters and gauges, and their text exposition. Names that the AWS daemon has keep its names and labels, so that
//! dashboards go on working; the rest is `wipam_*`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    /// Sum and count.
    Summary,
}

/// Every metric: name, kind, meaning.
const METRICS: &[(&str, Kind, &str)] = &[
    ("awscni_add_ip_req_count", Kind::Counter, "ADD calls of the plugin"),
    ("awscni_assigned_ip_addresses", Kind::Gauge, "Addresses leased to pods"),
    ("awscni_assigned_ip_per_eni", Kind::Gauge, "Addresses leased to pods, by interface"),
    ("awscni_aws_api_error_count", Kind::Counter, "Failed EC2 calls, by API and code"),
    ("awscni_aws_api_latency_ms", Kind::Summary, "Time of EC2 calls, ms"),
    ("awscni_build_info", Kind::Gauge, "1, with the version"),
    ("awscni_del_ip_req_count", Kind::Counter, "DEL calls of the plugin, by reason"),
    ("awscni_ec2api_error_count", Kind::Counter, "Failed EC2 calls"),
    ("awscni_ec2api_req_count", Kind::Counter, "EC2 calls"),
    ("awscni_eni_allocated", Kind::Gauge, "Attached interfaces"),
    ("awscni_eni_max", Kind::Gauge, "Interfaces the instance type takes"),
    ("awscni_ip_max", Kind::Gauge, "Addresses the instance type takes"),
    ("awscni_no_available_ip_addresses", Kind::Counter, "ADDs that got no address"),
    ("awscni_total_ip_addresses", Kind::Gauge, "Addresses in the pool"),
    ("awscni_total_ipv4_prefixes", Kind::Gauge, "Prefixes in the pool"),
    ("wipam_adds_total", Kind::Counter, "Answered ADDs; cause is empty for success"),
    ("wipam_add_seconds", Kind::Summary, "Time from an ADD's arrival to its answer"),
    ("wipam_addresses", Kind::Gauge, "Addresses of the pool by state"),
    ("wipam_bad_checkpoints_total", Kind::Counter, "Checkpoint files that were set aside, by reason"),
    ("wipam_checkpoint_failures_total", Kind::Counter, "Checkpoints that could not be written"),
    ("wipam_checkpoint_seconds", Kind::Summary, "Time of writing a checkpoint"),
    ("wipam_checkpoint_changes", Kind::Summary, "Answers that one checkpoint carried (group commit)"),
    ("wipam_decisions_total", Kind::Counter, "Answers of policies, by slot, call and rung of the ladder"),
    ("wipam_decision_seconds", Kind::Summary, "Time of a policy's answer"),
    ("wipam_decision_fuel", Kind::Summary, "Fuel of a policy's answer"),
    ("wipam_dels_total", Kind::Counter, "Answered DELs, by cause"),
    ("wipam_guard_total", Kind::Counter, "Proposals the guard refused, by number of the invariant"),
    ("wipam_held_total", Kind::Counter, "Leases whose sandbox vanished without a DEL"),
    ("wipam_ladder_steps_total", Kind::Counter, "Steps of the fault ladder, by slot"),
    ("wipam_network_failures_total", Kind::Counter, "Fences, tear-downs and set-ups of links that failed"),
    ("wipam_policy_faults_total", Kind::Counter, "Faults of policies, by slot"),
    ("wipam_shadow_total", Kind::Counter, "Answers of shadow policies, by slot and agreement"),
    ("wipam_rejected_peers_total", Kind::Counter, "Connections of users who may not connect"),
    ("wipam_waiting_adds", Kind::Gauge, "ADDs that wait for an address"),
];

/// One series: name and labels as they stand between the braces.
type Series = (&'static str, String);

/// The registry.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<BTreeMap<Series, (f64, u64)>>);

impl Metrics {
    fn with(&self, name: &'static str, labels: &[(&str, &str)], change: impl FnOnce(&mut (f64, u64))) {
        debug_assert!(METRICS.iter().any(|m| m.0 == name), "{name} is not in the table");
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry((name, render_labels(labels))).or_default());
    }

    /// Counts one.
    pub fn count(&self, name: &'static str, labels: &[(&str, &str)]) {
        self.with(name, labels, |v| v.0 += 1.0);
    }

    /// Sets a gauge.
    pub fn set(&self, name: &'static str, labels: &[(&str, &str)], value: u64) {
        self.with(name, labels, |v| v.0 = value as f64);
    }

    /// Adds an observation.
    pub fn observe(&self, name: &'static str, labels: &[(&str, &str)], value: f64) {
        self.with(name, labels, |v| *v = (v.0 + value, v.1 + 1));
    }

    /// Adds a time in seconds.
    pub fn time(&self, name: &'static str, labels: &[(&str, &str)], took: Duration) {
        self.observe(name, labels, took.as_secs_f64());
    }

    /// Forgets the series of a gauge, so that what is gone is not shown for ever.
    pub fn forget(&self, name: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|(n, _), _| *n != name);
    }

    /// Value of a counter or gauge; 0 when it was never touched. For tests and for status pages.
    pub fn value(&self, name: &'static str, labels: &[(&str, &str)]) -> f64 {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&(name, render_labels(labels))).map_or(0.0, |v| v.0)
    }

    /// Text exposition, format 0.0.4.
    pub fn render(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = String::new();
        for (name, kind, help) in METRICS {
            let series: Vec<_> = all.range((*name, String::new())..).take_while(|((n, _), _)| n == name).collect();
            if series.is_empty() {
                continue;
            }
            let kind_text = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Summary => "summary",
            };
            let _ = writeln!(out, "# HELP {name} {help}.\n# TYPE {name} {kind_text}");
            for ((_, labels), (sum, count)) in series {
                let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                let _ = match kind {
                    Kind::Summary => writeln!(out, "{name}_sum{braces} {sum}\n{name}_count{braces} {count}"),
                    _ => writeln!(out, "{name}{braces} {sum}"),
                };
            }
        }
        out
    }
}

fn render_labels(labels: &[(&str, &str)]) -> String {
    let escape = |v: &str| v.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    labels.iter().map(|(k, v)| format!("{k}=\"{}\"", escape(v))).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_by_need_and_has_no_doubles() {
        let mut names: Vec<_> = METRICS.iter().map(|m| m.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), METRICS.len());
    }

    #[test]
    fn exposition_escapes_and_groups() {
        let m = Metrics::default();
        m.count("wipam_adds_total", &[("cause", "")]);
        m.count("wipam_adds_total", &[("cause", "a\"b\\c\n")]);
        m.count("wipam_adds_total", &[("cause", "")]);
        m.set("awscni_eni_max", &[], 3);
        m.time("wipam_add_seconds", &[], Duration::from_millis(500));
        let text = m.render();
        assert!(text.contains("# TYPE wipam_adds_total counter\nwipam_adds_total{cause=\"\"} 2\n"), "{text}");
        assert!(text.contains(r#"wipam_adds_total{cause="a\"b\\c\n"} 1"#), "{text}");
        assert!(text.contains("awscni_eni_max 3\n"));
        assert!(text.contains("wipam_add_seconds_sum 0.5\nwipam_add_seconds_count 1\n"));
        m.forget("awscni_eni_max");
        assert!(!m.render().contains("awscni_eni_max"));
    }
}
