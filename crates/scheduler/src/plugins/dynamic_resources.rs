//! Allocates devices for the resource claims of pods.

use crate::framework::{Plugin, Point, PostFilter, PostFilterContext};

pub struct DynamicResources;

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PostFilter]
    }

    fn post_filter(&self, _: &PostFilterContext<'_>) -> PostFilter {
        PostFilter::Refused("no new claims to deallocate".into())
    }
}
