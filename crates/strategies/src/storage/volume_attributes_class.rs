//! VolumeAttributesClass: driver parameters.

use super::parameters;
use crate::Config;
use crate::plain::Ruled;
use crate::table::Row;
use meta::field::ErrorList;
use meta::{FieldError, FieldPath, Object, names};

pub fn row(_: &Config) -> Row {
    Row::stored(Ruled::new(validate))
}

fn validate(o: &Object, errors: &mut ErrorList) {
    parameters(o, errors);
    let driver = o.str_at(&["driverName"]).unwrap_or_default().to_lowercase();
    if !driver.is_empty() {
        let at = FieldPath::new("driverName");
        errors.extend(names::qualified_name(&driver).into_iter().map(|m| FieldError::invalid(&at, driver.as_str(), m)));
    }
}
