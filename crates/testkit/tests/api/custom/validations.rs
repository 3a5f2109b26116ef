//! `x-kubernetes-validations`: issue 3, rules of definitions in CEL.

use super::*;

fn ruled(properties: Value, rules: Value) -> Value {
    let mut s = spec(properties);
    s["properties"]["spec"]["x-kubernetes-validations"] = rules;
    s
}

fn message(a: &Answer) -> &str {
    a.body["message"].as_str().unwrap_or_default()
}

/// Rules are asked at every write, with upstream's words, reasons and fields.
#[tokio::test(start_paused = true)]
async fn rules_are_enforced() {
    let c = with(ruled(
        json!({
            "replicas": {"type": "integer"}, "max": {"type": "integer"}, "kind": {"type": "string", "maxLength": 20},
            "namespace": {"type": "string", "x-kubernetes-validations": [{"rule": "self.startsWith('n')", "message": "begins with n"}]},
            "when": {"type": "string", "format": "date-time"}, "size": {"x-kubernetes-int-or-string": true},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "maxItems": 5, "items": {"type": "string", "maxLength": 5}},
        }),
        json!([
            {"rule": "self.replicas <= self.max", "messageExpression": "'at most %d'.format([self.max])", "fieldPath": ".replicas"},
            {"rule": "!has(self.kind) || self.kind == oldSelf.kind", "message": "kind is immutable", "reason": "FieldValueForbidden"},
            {"rule": "!has(self.when) || self.when.getFullYear() > 2000"},
            {"rule": "!has(self.__namespace__) || self.__namespace__ != 'no'"},
            {"rule": "!has(self.size) || (type(self.size) == int ? self.size < 5 : self.size == 'all')"},
            {"rule": "!has(self.set) || self.set == ['a', 'b']", "message": "a and b in any order"},
        ]),
    ))
    .await;
    let cases = [
        (json!({"replicas": 3, "max": 2}), "spec.replicas: Invalid value: at most 2"),
        (
            json!({"replicas": 1}),
            "spec: Invalid value: \"object\": no such key: max evaluating rule: self.replicas <= self.max",
        ),
        (
            json!({"replicas": 1, "max": 2, "when": "1999-01-01T00:00:00Z"}),
            "spec: Invalid value: failed rule: !has(self.when) || self.when.getFullYear() > 2000",
        ),
        (json!({"replicas": 1, "max": 2, "namespace": "x"}), "spec.namespace: Invalid value: \"x\": begins with n"),
        (json!({"replicas": 1, "max": 2, "size": 7}), "failed rule: !has(self.size)"),
        (json!({"replicas": 1, "max": 2, "set": ["a", "c"]}), "a and b in any order"),
    ];
    for (fields, expect) in cases {
        let a = c.call("POST", CRONTABS, crontab("x", fields)).await;
        assert_eq!(a.code, 422, "{}", a.body);
        assert!(message(&a).contains(expect), "{expect}\n{}", message(&a));
    }
    let fine = json!({"replicas": 1, "max": 2, "kind": "k", "size": "all", "set": ["b", "a"], "namespace": "n"});
    let a = c.call("POST", CRONTABS, crontab("x", fine)).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let mut changed = a.body.clone();
    changed["spec"]["kind"] = "other".into();
    let a = c.call("PUT", &format!("{CRONTABS}/x"), changed).await;
    assert_eq!(a.code, 422, "{}", a.body);
    assert!(message(&a).contains("spec: Forbidden: kind is immutable"), "{}", message(&a));
}

/// A definition whose rules do not compile, or could cost too much, is refused at the rule.
#[tokio::test(start_paused = true)]
async fn bad_rules_are_refused() {
    let c = Cluster::start(3).await;
    let text = json!({"type": "string"});
    let list = json!({"type": "array", "items": {"type": "string"}});
    let cases = [
        (
            text.clone(),
            json!([{"rule": "self.nothing == 1"}]),
            "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule",
            "compilation failed: ERROR: <input>:1:5: undefined field 'nothing'\n | self.nothing == 1\n | ....^",
        ),
        (
            text.clone(),
            json!([{"rule": "self.x"}]),
            "x-kubernetes-validations[0].rule",
            "cel expression must evaluate to a bool",
        ),
        (
            text.clone(),
            json!([{"rule": "self.x =="}]),
            "x-kubernetes-validations[0].rule",
            "Syntax error: mismatched input '<EOF>'",
        ),
        (
            text.clone(),
            json!([{"rule": "self.x == 'a'", "messageExpression": "1"}]),
            "x-kubernetes-validations[0].messageExpression",
            "messageExpression must evaluate to a string",
        ),
        (
            text,
            json!([{"rule": "self.x == 'a'", "optionalOldSelf": true}]),
            "x-kubernetes-validations[0].optionalOldSelf",
            "may not be set if oldSelf is not used in rule",
        ),
        (
            list,
            json!([{"rule": "self.x.all(a, self.x.all(b, a == b))"}]),
            "x-kubernetes-validations[0].rule",
            "estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
        ),
    ];
    for (field, rules, place, why) in cases {
        let a = c.call("POST", DEFINITIONS, crontabs(ruled(json!({"x": field}), rules))).await;
        assert_eq!(a.code, 422, "{}", a.body);
        let all = a.body["details"]["causes"].as_array().cloned().unwrap_or_default();
        let reported = all.iter().any(|c| {
            c["field"].as_str().unwrap_or_default().ends_with(place.rsplit("openAPIV3Schema").next().unwrap_or(place))
                && c["message"].as_str().unwrap_or_default().contains(why)
        });
        assert!(reported, "{why}\n{}", a.body);
    }
}

/// What a new rule forbids may stay as it is, as long as nobody touches it.
#[tokio::test(start_paused = true)]
async fn unchanged_parts_are_tolerated() {
    let c = with(spec(json!({"a": {"type": "string"}, "b": {"type": "string"}}))).await;
    let a = c.call("POST", CRONTABS, crontab("x", json!({"a": "old", "b": "1"}))).await;
    assert_eq!(a.code, 201, "{}", a.body);
    let mut definition = c.call("GET", &format!("{DEFINITIONS}/{NAME}"), Value::Null).await.body;
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["a"]["x-kubernetes-validations"] =
        json!([{"rule": "self == 'new'"}]);
    let a = c.call("PUT", &format!("{DEFINITIONS}/{NAME}"), definition).await;
    assert_eq!(a.code, 200, "{}", a.body);
    for _ in 0..2000 {
        let a = c.call("POST", &format!("{CRONTABS}?dryRun=All"), crontab("y", json!({"a": "old"}))).await;
        if a.code == 422 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut x = c.call("GET", &format!("{CRONTABS}/x"), Value::Null).await.body;
    x["spec"]["b"] = "2".into();
    let body = x.to_string().into();
    let r = c.request("PUT", &format!("{CRONTABS}/x"), &[("content-type", "application/json")], body).await;
    let warning = r.headers()["warning"].to_str().unwrap().to_owned();
    assert!(warning.contains("spec.a: Invalid value: \\\"old\\\": failed rule: self == 'new'"), "{warning}");
    assert_eq!(r.status(), 200);
    let a = c.call("GET", &format!("{CRONTABS}/x"), Value::Null).await;
    let mut x = a.body;
    x["spec"]["a"] = "other".into();
    let a = c.call("PUT", &format!("{CRONTABS}/x"), x).await;
    assert_eq!(a.code, 422, "{}", a.body);
}

/// Rules stand where structure does: below a junctor they are refused, as upstream refuses them.
#[tokio::test(start_paused = true)]
async fn rules_below_junctors_are_refused() {
    let c = Cluster::start(3).await;
    let below =
        json!({"properties": {"spec": {"properties": {"a": {"x-kubernetes-validations": [{"rule": "true"}]}}}}});
    let cases = [
        ("allOf", json!([below]), "allOf[0]"),
        ("anyOf", json!([{}, below]), "anyOf[1]"),
        ("oneOf", json!([below]), "oneOf[0]"),
        ("not", below.clone(), "not"),
    ];
    for (junctor, value, at) in cases {
        let mut schema = spec(json!({"a": {"type": "string"}}));
        schema[junctor] = value;
        let a = c.call("POST", DEFINITIONS, crontabs(schema)).await;
        let field =
            format!("spec.validation.openAPIV3Schema.{at}.properties[spec].properties[a].x-kubernetes-validations");
        assert_eq!((a.code, causes(&a)), (422, vec![(field, "FieldValueForbidden".to_owned())]), "{}", a.body);
        let message = a.body["details"]["causes"][0]["message"].as_str().unwrap();
        assert_eq!(message, "Forbidden: must be empty to be structural");
    }
}
