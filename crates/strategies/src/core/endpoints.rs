//! Endpoints: each subset has addresses.

use crate::read::{items, text};
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, names};

pub fn validate(o: &Object, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    for (i, s) in items(&all, "subsets").iter().enumerate() {
        let at = FieldPath::new("subsets").index(i);
        if items(s, "addresses").is_empty() && items(s, "notReadyAddresses").is_empty() {
            errors.push(FieldError::required(&at, "must specify `addresses` or `notReadyAddresses`"));
        }
        for list in ["addresses", "notReadyAddresses"] {
            for (j, a) in items(s, list).iter().enumerate() {
                // Said once as an address, and once as one that somebody may have.
                if text(a, "ip").parse::<std::net::IpAddr>().is_err() {
                    let at = at.child(list).index(j).child("ip");
                    errors.push(FieldError::invalid(&at, text(a, "ip"), "must be a valid IP address"));
                }
            }
        }
        let ports = items(s, "ports");
        for (j, p) in ports.iter().enumerate() {
            let at = at.child("ports").index(j).child("name");
            let name = text(p, "name");
            if name.is_empty() && ports.len() > 1 {
                errors.push(FieldError::required(&at, ""));
            } else if !name.is_empty() {
                errors.extend(names::dns_label(name).into_iter().map(|m| FieldError::invalid(&at, name, m)));
            }
        }
    }
}

/// An EndpointSlice: ports are told apart by their names.
pub fn slice(o: &Object, errors: &mut ErrorList) {
    let all = o.clone().into_value();
    let ports = items(&all, "ports");
    for (i, p) in ports.iter().enumerate() {
        let name = text(p, "name");
        if ports[..i].iter().any(|q| text(q, "name") == name) {
            errors.push(FieldError::duplicate(&FieldPath::new("ports").index(i).child("name"), name));
        }
    }
}
