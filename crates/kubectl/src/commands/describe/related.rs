//! Lists of objects that a description mentions, in pages of `--chunk-size`.

use crate::error::Result;
use crate::kube::Kube;
use crate::resource::Collection;
use crate::resource::select::{Selection, list};
use meta::Object;

/// Returns the objects of a type in a namespace that `selection` matches.
pub async fn objects(k: &mut Kube, types: &str, namespace: &str, selection: &Selection<'_>) -> Result<Vec<Object>> {
    let c = Collection { resource: k.resource(types).await?, namespace: namespace.to_owned() };
    Ok(list(k, &c, selection).await?.into_iter().filter_map(|i| i.object).collect())
}
