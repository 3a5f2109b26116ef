//! Describes the volumes that pods mount.

use super::page::{Page, list, show};
use meta::Value;

pub fn volumes(p: &mut Page, level: usize, v: Option<&Value>, pad: &str) {
    let all = list(v);
    if all.is_empty() {
        return p.at(level, &format!("{pad}Volumes"), "<none>");
    }
    p.line(level, format!("{pad}Volumes:"));
    let inner = if pad.is_empty() { "  " } else { " " };
    for v in all {
        p.line(level, format!("{pad}{inner}{}:", show(&v["name"])));
        super::sources::pod_source(p, level + 2, v);
    }
}
