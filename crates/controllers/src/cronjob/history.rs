//! Finished jobs of a CronJob beyond the limits of its history.

use super::view::Spec;
use crate::job::JobView;
use client::Entry;
use std::sync::Arc;

/// The oldest finished jobs beyond the limits, by their start; a job that never started is the youngest.
pub fn excess<'a>(spec: &Spec, jobs: &'a [Arc<Entry<JobView>>]) -> Vec<&'a Arc<Entry<JobView>>> {
    let mut excess = Vec::new();
    for (kind, limit) in [("Complete", spec.successful_jobs_history_limit), ("Failed", spec.failed_jobs_history_limit)]
    {
        let Some(limit) = limit else { continue };
        let ended = |j: &&Arc<Entry<JobView>>| j.view.finished().is_some_and(|c| &*c.r#type == kind);
        let mut ended: Vec<_> = jobs.iter().filter(ended).collect();
        let start = |j: &Arc<Entry<JobView>>| (j.view.start_time().is_none(), j.view.start_time());
        ended.sort_by(|a, b| start(a).cmp(&start(b)).then_with(|| a.meta.name.cmp(&b.meta.name)));
        ended.truncate(ended.len().saturating_sub(limit));
        excess.extend(ended);
    }
    excess
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Clauses: C13.history
    #[test]
    fn the_oldest_jobs_are_deleted() {
        let job = |name: &str, kind: &str, start: Option<u8>| {
            let start = start.map(|hour| format!("2026-01-01T{hour:02}:00:00Z"));
            let v = json!({"metadata": {"name": name}, "status": {"startTime": start, "conditions": [{"type": kind, "status": "True"}]}});
            Arc::new(Entry::new(v.to_string().into()).unwrap())
        };
        let jobs = [
            job("c", "Complete", Some(3)),
            job("unstarted", "Complete", None),
            job("b", "Complete", Some(1)),
            job("a", "Complete", Some(1)),
            job("f", "Failed", Some(1)),
            job("g", "Failed", Some(2)),
            job("ending", "FailureTarget", Some(0)),
        ];
        let check = |succeeded: Option<usize>, failed: Option<usize>, expect: &[&str]| {
            let spec =
                Spec { successful_jobs_history_limit: succeeded, failed_jobs_history_limit: failed, ..Spec::default() };
            let names: Vec<_> = excess(&spec, &jobs).iter().map(|j| j.meta.name.to_string()).collect();
            assert_eq!(names, expect);
        };
        check(None, None, &[]);
        check(Some(3), Some(1), &["a", "f"]);
        check(Some(1), None, &["a", "b", "c"]);
        check(None, Some(0), &["f", "g"]);
    }
}
