//! Which volume fits a claim (upstream `storage/volume/pv_helpers.go` and `persistentvolume/index.go`).

use super::view::{Claim, Volume};
use std::sync::Arc;

/// The volume for a claim: one that is reserved for it, otherwise the one with the fewest access modes, of these the smallest.
///
/// With `is_delayed` only a reserved one, since the scheduler chooses among the others.
pub fn best_volume<'a>(
    claim: &Claim,
    volumes: impl Iterator<Item = &'a Arc<Volume>>,
    is_delayed: bool,
) -> Option<&'a Arc<Volume>> {
    let rank = |v: &Volume| (!v.view.is_for(claim), v.view.modes.len(), v.view.capacity, v.meta.name.clone());
    volumes.filter(|v| fits(claim, v) && (!is_delayed || v.view.is_for(claim))).min_by_key(|v| rank(v))
}

/// Whether a volume can be bound to a claim that names no volume.
pub fn fits(claim: &Claim, volume: &Volume) -> bool {
    let (c, v) = (&claim.view, &volume.view);
    let large_enough = v.capacity >= c.size;
    let has_modes = c.modes.iter().all(|m| v.modes.contains(m));
    let same_kind = v.volume_mode == c.volume_mode && v.attributes_class == c.attributes_class;
    if !large_enough || !has_modes || !same_kind || volume.meta.is_deleting() {
        return false;
    }
    if v.claim.is_some() {
        return v.is_for(claim);
    }
    &*v.phase == "Available"
        && *v.class == *c.class_name()
        && c.selector.as_ref().is_none_or(|s| s.matches(|k| volume.meta.label(k)))
}

/// Why a volume that a claim names does not satisfy it; none if it does.
pub fn mismatch(claim: &Claim, volume: &Volume) -> Option<String> {
    let (c, v) = (&claim.view, &volume.view);
    let why = if volume.meta.is_deleting() {
        return Some(format!("the volume is marked for deletion {:?}", volume.meta.name));
    } else if v.capacity.value() < c.size.value() {
        "requested PV is too small"
    } else if *v.class != *c.class_name() {
        "storageClassName does not match"
    } else if v.attributes_class != c.attributes_class {
        "volumeAttributesClassName does not match"
    } else if v.volume_mode != c.volume_mode {
        "incompatible volumeMode"
    } else if !c.modes.iter().all(|m| v.modes.contains(m)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{claim, volume};
    use super::*;
    use serde_json::{Value, json};

    fn best(claim_changes: Value, volumes: &[(&str, Value)], is_delayed: bool) -> Option<String> {
        let claim = claim("c", claim_changes);
        let volumes: Vec<_> = volumes.iter().map(|(name, changes)| volume(name, changes.clone())).collect();
        best_volume(&claim, volumes.iter(), is_delayed).map(|v| v.meta.name.to_string())
    }

    fn size(gi: i64) -> Value {
        json!({"spec": {"capacity": {"storage": format!("{gi}Gi")}}})
    }

    #[test]
    fn the_smallest_fitting_volume_is_chosen() {
        let sizes = [("small", size(1)), ("large", size(10)), ("middle", size(5))];
        for (request, expect) in
            [("1Gi", Some("small")), ("2Gi", Some("middle")), ("5368709120", Some("middle")), ("11Gi", None)]
        {
            let request = json!({"spec": {"resources": {"requests": {"storage": request}}}});
            assert_eq!(best(request.clone(), &sizes, false).as_deref(), expect, "{request}");
        }
    }

    #[test]
    fn fewer_access_modes_go_before_size() {
        let many = json!({"spec": {"accessModes": ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany"]}});
        let volumes = [("many", many), ("large", size(50))];
        assert_eq!(best(json!({}), &volumes, false).as_deref(), Some("large"));
        let shared = json!({"spec": {"accessModes": ["ReadWriteMany"]}});
        assert_eq!(best(shared, &volumes, false).as_deref(), Some("many"));
    }

    #[test]
    fn volumes_that_differ_are_not_chosen() {
        let label = |v: &str| json!({"metadata": {"labels": {"tier": v}}});
        let select = json!({"spec": {"selector": {"matchLabels": {"tier": "gold"}}}});
        let cases = [
            ("class", json!({}), json!({"spec": {"storageClassName": "fast"}}), false),
            (
                "same class",
                json!({"spec": {"storageClassName": "fast"}}),
                json!({"spec": {"storageClassName": "fast"}}),
                true,
            ),
            (
                "class by annotation",
                json!({"metadata": {"annotations": {"volume.beta.kubernetes.io/storage-class": "fast"}}}),
                json!({"spec": {"storageClassName": "fast"}}),
                true,
            ),
            ("block", json!({}), json!({"spec": {"volumeMode": "Block"}}), false),
            ("both block", json!({"spec": {"volumeMode": "Block"}}), json!({"spec": {"volumeMode": "Block"}}), true),
            ("attributes", json!({"spec": {"volumeAttributesClassName": "gold"}}), json!({}), false),
            ("selected", select.clone(), label("gold"), true),
            ("not selected", select, label("silver"), false),
            ("pending", json!({}), json!({"status": {"phase": "Pending"}}), false),
            ("deleted", json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
            ("of another claim", json!({}), json!({"spec": {"claimRef": {"namespace": "ns", "name": "d"}}}), false),
            (
                "of an older claim",
                json!({}),
                json!({"spec": {"claimRef": {"namespace": "ns", "name": "c", "uid": "old"}}}),
                false,
            ),
            ("modes", json!({"spec": {"accessModes": ["ReadWriteOncePod"]}}), json!({}), false),
        ];
        for (name, c, v, expect) in cases {
            assert_eq!(best(c, &[("v", v)], false).is_some(), expect, "{name}");
        }
    }

    #[test]
    fn a_reserved_volume_goes_before_all_others() {
        let reserved = json!({"spec": {"claimRef": {"namespace": "ns", "name": "c"}, "capacity": {"storage": "90Gi"},
            "storageClassName": "another"}});
        let volumes = [("free", size(1)), ("reserved", reserved)];
        assert_eq!(best(json!({}), &volumes, false).as_deref(), Some("reserved"));
        assert_eq!(best(json!({}), &volumes, true).as_deref(), Some("reserved"));
        assert_eq!(best(json!({}), &volumes[..1], true), None, "the scheduler chooses");
    }

    #[test]
    fn mismatches_of_a_named_volume_have_upstreams_texts() {
        let cases = [
            (json!({}), None),
            (json!({"spec": {"capacity": {"storage": "1Mi"}}}), Some("requested PV is too small")),
            (json!({"spec": {"storageClassName": "x"}}), Some("storageClassName does not match")),
            (json!({"spec": {"volumeAttributesClassName": "x"}}), Some("volumeAttributesClassName does not match")),
            (json!({"spec": {"volumeMode": "Block"}}), Some("incompatible volumeMode")),
            (json!({"spec": {"accessModes": ["ReadOnlyMany"]}}), Some("incompatible accessMode")),
            (
                json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
                Some("the volume is marked for deletion \"v\""),
            ),
        ];
        for (changes, expect) in cases {
            assert_eq!(mismatch(&claim("c", json!({})), &volume("v", changes)).as_deref(), expect);
        }
    }
}
