//! Prefers nodes that have the pod's images, weighted by image size and by the number of nodes with the image.

use crate::cluster::{Cluster, Node};
use crate::framework::{MAX_SCORE, NodeScore, Plugin, Point, PreScore};
use crate::pod::Pod;

/// Image sizes below the minimum do not count; sizes above the maximum (per container) count as the maximum.
const MIN: i64 = 23 * 1024 * 1024;
const MAX: i64 = 1000 * 1024 * 1024;

pub struct ImageLocality;

struct Images {
    /// Image names, and the fraction of nodes that have them.
    images: Vec<(Box<str>, f64)>,
    containers: i64,
}

/// Adds the tag `latest` to an image name without a tag.
fn normalized(image: &str) -> Box<str> {
    let name = image.rsplit('/').next().unwrap_or(image);
    if name.contains(':') { image.into() } else { format!("{image}:latest").into() }
}

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Score]
    }

    fn pre_score<'a>(&'a self, pod: &'a Pod, cluster: &'a Cluster, _: &[&'a Node]) -> PreScore<'a> {
        let images: Vec<_> = pod
            .view
            .images
            .iter()
            .map(|i| normalized(i))
            .map(|i| (cluster.holders_of(&i) as f64 / cluster.live().max(1) as f64, i))
            .filter(|(share, _)| *share > 0.0)
            .map(|(share, i)| (i, share))
            .collect();
        // If no node has any of the images, all score the same.
        if images.is_empty() {
            return Ok(None);
        }
        Ok(Some(Box::new(Images { images, containers: pod.view.images.len() as i64 })))
    }
}

impl NodeScore for Images {
    fn score(&self, node: &Node) -> i64 {
        let Some(n) = &node.entry else { return 0 };
        let here: i64 = self
            .images
            .iter()
            .filter_map(|(i, share)| n.view.images.get(i).map(|size| (*size as f64 * share) as i64))
            .sum();
        let max = MAX * self.containers;
        (here.clamp(MIN, max) - MIN) * MAX_SCORE / (max - MIN)
    }
}
