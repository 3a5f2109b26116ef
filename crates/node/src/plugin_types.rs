//! The types of plugins that register with this node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plugins::KubeletRoot;
use plugins::registration::{self, Handler};

/// How often the directory of sockets is searched.
const INTERVAL: Duration = Duration::from_secs(1);
/// The directory of sockets by which plugins register, below the root directory of the kubelet.
const DIRECTORY: &str = "plugins_registry";

/// Registers plugins, for ever.
pub(crate) async fn follow(root: &KubeletRoot, handlers: BTreeMap<&'static str, Arc<dyn Handler>>) {
    let options = registration::Options {
        directory: root.path.join(DIRECTORY),
        shown_as: root.shown_as.join(DIRECTORY),
        interval: INTERVAL,
        handlers,
    };
    registration::follow(options).await;
}
