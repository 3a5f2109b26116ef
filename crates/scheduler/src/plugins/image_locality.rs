//! Prefers nodes that have the pod's images, the more the larger they are and the more nodes have them.

use crate::cluster::{Cluster, Node};
use crate::framework::{MAX_SCORE, NodeScore, Plugin};
use crate::pod::Pod;

/// Images smaller than the one do not matter; more than the other, per container, matters no more.
const LEAST: i64 = 23 * 1024 * 1024;
const MOST: i64 = 1000 * 1024 * 1024;

pub struct ImageLocality;

struct Images {
    /// Image name and the share of nodes that have it.
    wanted: Vec<(Box<str>, f64)>,
    containers: i64,
}

/// Images without a tag are meant with `latest`.
fn normalized(image: &str) -> Box<str> {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') || image.contains('@') { image.into() } else { format!("{image}:latest").into() }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn pre_score<'a>(&self, pod: &'a Pod, cluster: &'a Cluster) -> Option<Box<dyn NodeScore + 'a>> {
        let wanted: Vec<_> = pod
            .view
            .images
            .iter()
            .map(|i| normalized(i))
            .map(|i| (cluster.holders_of(&i) as f64 / cluster.live().max(1) as f64, i))
            .filter(|(share, _)| *share > 0.0)
            .map(|(share, i)| (i, share))
            .collect();
        // Where no node has any of them, all nodes are alike.
        if wanted.is_empty() {
            return None;
        }
        Some(Box::new(Images { wanted, containers: pod.view.images.len() as i64 }))
    }
}

impl NodeScore for Images {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let here: i64 = self
            .wanted
            .iter()
            .filter_map(|(i, share)| n.view.images.get(i).map(|size| (*size as f64 * share) as i64))
            .sum();
        let most = MOST * self.containers;
        (here.clamp(LEAST, most) - LEAST) * MAX_SCORE / (most - LEAST)
    }
}
