//! What pods and pod templates share: defaults and rules that take more than one field.

use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Map, Object, Quantity, Value, names};
use std::collections::HashSet;

/// Defaults of a pod spec at `path`.
pub fn default(o: &mut Object, path: &[&str]) {
    let Some(mut spec) = o.remove(path) else { return };
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            container(c);
        }
    }
    if spec["hostNetwork"] == true {
        for list in ["initContainers", "containers"] {
            for c in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                for p in c.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
                    if p["hostPort"].as_i64().unwrap_or(0) == 0 {
                        p["hostPort"] = p["containerPort"].clone();
                    }
                }
            }
        }
    }
    for v in spec.get_mut("volumes").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(m) = v.as_object_mut()
            && !m.keys().any(|k| k != "name")
        {
            m.insert("emptyDir".into(), Value::Object(Map::new()));
        }
    }
    // The old name of the service account follows the new one, and the other way round.
    let name = |spec: &Value, k: &str| spec[k].as_str().unwrap_or_default().to_owned();
    let (new, old) = (name(&spec, "serviceAccountName"), name(&spec, "serviceAccount"));
    match (new.as_str(), old.as_str()) {
        ("", "") => {}
        ("", old) => spec["serviceAccountName"] = old.into(),
        (new, _) => spec["serviceAccount"] = new.into(),
    }
    o.set(path, spec);
}

fn container(c: &mut Value) {
    let Some(m) = c.as_object_mut() else { return };
    if m.get("imagePullPolicy").and_then(Value::as_str).unwrap_or_default().is_empty() {
        let image = m.get("image").and_then(Value::as_str).unwrap_or_default();
        m.insert("imagePullPolicy".into(), pull_policy(image).into());
    }
    // The timeout of a gRPC or HTTP probe and the like are the schema's.
}

/// `Always` for the tag `latest` or none, else `IfNotPresent`.
pub fn pull_policy(image: &str) -> &'static str {
    let name = image.rsplit('/').next().unwrap_or(image);
    // What is no reference at all has no tag either.
    if name.bytes().any(|b| !(b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-:@".contains(&b)))
        && !name.contains(':')
    {
        return "IfNotPresent";
    }
    if image.contains('@') {
        return "IfNotPresent";
    }
    match name.split_once(':') {
        Some((_, "latest")) | None => "Always",
        Some(_) => "IfNotPresent",
    }
}

/// The rules of a template: its labels and its pod spec.
pub fn validate(template: Option<&Value>, path: &FieldPath, errors: &mut ErrorList) {
    let Some(t) = template else { return };
    schema::rules::labels(&t["metadata"]["labels"], &path.child("labels"), errors);
    for (k, _) in t["metadata"]["annotations"].as_object().into_iter().flatten() {
        for m in names::qualified_name(&k.to_lowercase()) {
            errors.push(FieldError::invalid(&path.child("annotations"), k.as_str(), m));
        }
    }
    spec(&t["spec"], &path.child("spec"), errors);
}

/// Controllers that keep pods running want them restarted.
pub fn always_restarts(template: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let policy = template["spec"]["restartPolicy"].as_str().unwrap_or_default();
    let spec = path.child("spec");
    if policy != "Always" {
        errors.push(FieldError::not_supported(&spec.child("restartPolicy"), policy, &["Always"]));
    }
    if !template["spec"]["activeDeadlineSeconds"].is_null() {
        let why = "activeDeadlineSeconds in ReplicaSet is not Supported";
        errors.push(FieldError::forbidden(&spec.child("activeDeadlineSeconds"), why));
    }
}

fn items<'a>(v: &'a Value, key: &str) -> &'a [Value] {
    v[key].as_array().map_or(&[], Vec::as_slice)
}

/// The rules of a pod spec that one field cannot say.
pub fn spec(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if items(spec, "containers").is_empty() {
        errors.push(FieldError::required(&path.child("containers"), ""));
    }
    let volumes: HashSet<&str> = items(spec, "volumes").iter().filter_map(|v| v["name"].as_str()).collect();
    volume_sources(spec, path, errors);
    token_volumes(spec, path, errors);
    let mut seen: HashSet<&str> = HashSet::new();
    let mut host_ports = HashSet::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, c) in items(spec, list).iter().enumerate() {
            let at = path.child(list).index(i);
            if let Some(n) = c["name"].as_str().filter(|n| !n.is_empty())
                && !seen.insert(n)
            {
                errors.push(FieldError::duplicate(&at.child("name"), n));
            }
            container_rules(c, &at, &volumes, errors);
            if list == "containers" {
                for (j, p) in items(c, "ports").iter().enumerate() {
                    let host = p["hostPort"].as_i64().unwrap_or(0);
                    let key = format!("{}/{}/{host}", p["protocol"], p["hostIP"]);
                    if host != 0 && !host_ports.insert(key) {
                        errors.push(FieldError::duplicate(&at.child("ports").index(j).child("hostPort"), host));
                    }
                }
            }
        }
    }
    selector_terms(spec, path, errors);
    if spec["dnsPolicy"] == "None" && items(&spec["dnsConfig"], "nameservers").is_empty() {
        let why = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(&path.child("dnsConfig").child("nameservers"), why));
    }
    for (i, t) in items(spec, "tolerations").iter().enumerate() {
        let at = path.child("tolerations").index(i);
        let operator = t["operator"].as_str().unwrap_or_default();
        let value = t["value"].as_str().unwrap_or_default();
        if t["key"].as_str().unwrap_or_default().is_empty() && operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&at.child("operator"), operator, why));
        }
        if operator == "Exists" && !value.is_empty() {
            let why = "value must be empty when `operator` is 'Exists'";
            errors.push(FieldError::invalid(&at.child("operator"), t.clone(), why));
        }
        if !t["tolerationSeconds"].is_null() && t["effect"] != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&at.child("effect"), t["effect"].clone(), why));
        }
    }
}

/// A token needs an account to be a token of.
fn token_volumes(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    if !spec["serviceAccountName"].as_str().unwrap_or_default().is_empty() {
        return;
    }
    for (i, v) in items(spec, "volumes").iter().enumerate() {
        for (j, s) in items(&v["projected"], "sources").iter().enumerate() {
            if s["serviceAccountToken"].is_object() {
                let at = path.child("volumes").index(i).child("projected").child("sources").index(j);
                let why = "must not be specified when serviceAccountName is not set";
                errors.push(FieldError::forbidden(&at.child("serviceAccountToken"), why));
            }
        }
    }
}

fn selector_terms(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let node = &spec["affinity"]["nodeAffinity"];
    let at = path.child("affinity").child("nodeAffinity");
    let required = &node["requiredDuringSchedulingIgnoredDuringExecution"];
    if required.is_object() {
        let terms = at.child("requiredDuringSchedulingIgnoredDuringExecution").child("nodeSelectorTerms");
        if items(required, "nodeSelectorTerms").is_empty() {
            errors.push(FieldError::required(&terms, "must have at least one node selector term"));
        }
    }
}

fn volume_sources(spec: &Value, path: &FieldPath, errors: &mut ErrorList) {
    let mut seen = HashSet::new();
    for (i, v) in items(spec, "volumes").iter().enumerate() {
        let at = path.child("volumes").index(i);
        let name = v["name"].as_str().unwrap_or_default();
        if name.is_empty() {
            errors.push(FieldError::required(&at.child("name"), ""));
        } else {
            errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(&at.child("name"), name));
            }
        }
        let sources: Vec<&String> =
            v.as_object().into_iter().flatten().map(|(k, _)| k).filter(|k| *k != "name").collect();
        match &sources[..] {
            [] => errors.push(FieldError::required(&at, "must specify a volume type")),
            [_] => {}
            [_, rest @ ..] => {
                for s in rest {
                    errors.push(FieldError::forbidden(&at.child(s), "may not specify more than 1 volume type"));
                }
            }
        }
    }
}

fn container_rules(c: &Value, at: &FieldPath, volumes: &HashSet<&str>, errors: &mut ErrorList) {
    let name = c["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        errors.push(FieldError::required(&at.child("name"), ""));
    } else {
        errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at.child("name"), name, m)));
    }
    let image = c["image"].as_str().unwrap_or_default();
    if image.is_empty() {
        errors.push(FieldError::required(&at.child("image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(&at.child("image"), image, "must not have leading or trailing whitespace"));
    }
    let mut paths = HashSet::new();
    for (i, m) in items(c, "volumeMounts").iter().enumerate() {
        let m_at = at.child("volumeMounts").index(i);
        let volume = m["name"].as_str().unwrap_or_default();
        if volume.is_empty() {
            errors.push(FieldError::required(&m_at.child("name"), ""));
        }
        if !volumes.contains(volume) {
            errors.push(FieldError::not_found(&m_at.child("name"), volume));
        }
        let path = m["mountPath"].as_str().unwrap_or_default();
        if path.is_empty() {
            errors.push(FieldError::required(&m_at.child("mountPath"), ""));
        }
        if !paths.insert(path) {
            errors.push(FieldError::invalid(&m_at.child("mountPath"), path, "must be unique"));
        }
    }
    resources(&c["resources"], &at.child("resources"), errors);
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let p = &c[probe];
        if p.is_object() {
            handler(p, &at.child(probe), errors);
            let success = p["successThreshold"].as_i64().unwrap_or(1);
            if probe != "readinessProbe" && success != 1 {
                errors.push(FieldError::invalid(&at.child(probe).child("successThreshold"), success, "must be 1"));
            }
        }
    }
    for hook in ["postStart", "preStop"] {
        let h = &c["lifecycle"][hook];
        if h.is_object() {
            handler(h, &at.child("lifecycle").child(hook), errors);
        }
    }
    for (i, e) in items(c, "env").iter().enumerate() {
        let e_at = at.child("env").index(i);
        let from = &e["valueFrom"];
        if from.is_object() {
            let n = from.as_object().map_or(0, Map::len);
            let e_from = e_at.child("valueFrom");
            if !e["value"].as_str().unwrap_or_default().is_empty() {
                errors.push(FieldError::invalid(&e_from, "", "may not be specified when `value` is not empty"));
            }
            match n {
                0 => errors.push(FieldError::invalid(&e_from, "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")),
                1 => {}
                _ => errors.push(FieldError::invalid(&e_from, "", "may not have more than one field specified at a time")),
            }
        }
    }
}

fn handler(h: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let kinds: Vec<&str> =
        ["exec", "httpGet", "tcpSocket", "grpc", "sleep"].into_iter().filter(|k| h[*k].is_object()).collect();
    match &kinds[..] {
        [] => errors.push(FieldError::required(at, "must specify a handler type")),
        [_] => {}
        [_, rest @ ..] => {
            for k in rest {
                errors.push(FieldError::forbidden(&at.child(k), "may not specify more than 1 handler type"));
            }
        }
    }
}

/// Requests are not above limits.
pub fn resources(r: &Value, at: &FieldPath, errors: &mut ErrorList) {
    let parse = |v: &Value| v.as_str().and_then(|s| Quantity::parse(s).ok());
    for (k, v) in r["requests"].as_object().into_iter().flatten() {
        let limit = &r["limits"][k.as_str()];
        if let (Some(q), Some(l)) = (parse(v), parse(limit)) {
            let path = at.child("requests");
            if q > l {
                errors.push(FieldError::invalid(
                    &path,
                    v.clone(),
                    format!("must be less than or equal to {k} limit of {l}"),
                ));
            }
        }
    }
    for part in ["limits", "requests"] {
        for (k, v) in r[part].as_object().into_iter().flatten() {
            let path = at.child(part).key(k);
            let native = matches!(k.as_str(), "cpu" | "memory" | "ephemeral-storage") || k.starts_with("hugepages-");
            if !native && !k.contains('/') {
                errors.push(FieldError::invalid(
                    &path,
                    k.as_str(),
                    "must be a standard resource type or fully qualified",
                ));
                errors.push(FieldError::invalid(&path, k.as_str(), "must be a standard resource for containers"));
            }
            let q = parse(v);
            if q.is_some_and(|q| q.sign() < 0) {
                errors.push(FieldError::invalid(&path, v.clone(), "must be greater than or equal to 0"));
            }
            if k.contains('/') && q.is_some_and(|q| !q.is_integer()) {
                errors.push(FieldError::invalid(&path, v.clone(), "must be an integer"));
            }
        }
    }
}
