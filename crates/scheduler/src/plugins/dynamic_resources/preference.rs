//! How good the alternatives are that requests get (`firstAvailable`).

use serde_json::Value;
use std::collections::HashSet;

/// The most alternatives of a request, which is the score of the first one.
const MOST: i64 = 8;

/// The names of the alternatives of all requests as they are in results (`request/alternative`), each with its place.
pub fn alternatives(devices: &Value) -> impl Iterator<Item = (String, i64)> {
    let requests = devices["requests"].as_array().into_iter().flatten();
    requests.flat_map(|request| {
        let parent = request["name"].as_str().unwrap_or_default();
        let all = request["firstAvailable"].as_array().into_iter().flatten();
        all.zip(0..).map(move |(a, place)| (format!("{parent}/{}", a["name"].as_str().unwrap_or_default()), place))
    })
}

/// The score of an allocation: of each request the more, the earlier its alternative.
pub fn score(devices: &Value, allocation: &Value) -> i64 {
    let results = allocation["devices"]["results"].as_array().into_iter().flatten();
    let allocated: HashSet<&str> = results.filter_map(|r| r["request"].as_str()).collect();
    alternatives(devices).filter(|(name, _)| allocated.contains(name.as_str())).map(|(_, place)| MOST - place).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn earlier_alternatives_score_higher() {
        let devices = json!({"requests": [
            {"name": "a", "firstAvailable": [{"name": "large"}, {"name": "small"}]}, {"name": "b", "exactly": {}}]});
        let score = |names: &[&str]| {
            let results: Vec<_> = names.iter().map(|n| json!({"request": n})).collect();
            score(&devices, &json!({"devices": {"results": results}}))
        };
        assert_eq!(score(&["a/large", "a/large", "b"]), 8);
        assert_eq!(score(&["a/small", "b"]), 7);
        assert_eq!(score(&["b"]), 0);
    }
}
