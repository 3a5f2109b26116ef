//! Functions of versions after semver.org (`k8s.io/apiserver/pkg/cel/library/semverlib.go`).

use super::{Price, Row, no_overload, row};
use crate::libraries::semver::Version;
use crate::value::{Opaque, Val};

pub(super) const ROWS: &[Row] = &[
    row("semver", "string:semver;string,bool:semver", Price::Walk(0, 1.0), |a| match read(a) {
        Some(v) => Ok(Val::opaque(Opaque::Semver(v?))),
        None => no_overload(),
    }),
    row("isSemver", "string:bool;string,bool:bool", Price::Walk(0, 1.0), |a| match read(a) {
        Some(v) => Ok(Val::Bool(v.is_ok())),
        None => no_overload(),
    }),
    row("major", ".semver:int", Price::Fixed(1), |a| part(a, 0)),
    row("minor", ".semver:int", Price::Fixed(1), |a| part(a, 1)),
    row("patch", ".semver:int", Price::Fixed(1), |a| part(a, 2)),
];

fn read(args: &[Val<'_>]) -> Option<Result<Version, String>> {
    let s = args[0].as_str()?;
    match args.get(1) {
        None | Some(Val::Bool(false)) => Some(Version::parse(s)),
        Some(Val::Bool(true)) => Some(Version::normalized(s)),
        Some(_) => None,
    }
}

fn part<'a>(args: &[Val<'a>], i: usize) -> super::Result<'a> {
    match &args[0] {
        Val::Opaque(o) => match &**o {
            Opaque::Semver(v) => Ok(Val::Int(i64::try_from(v.parts[i]).unwrap_or(i64::MAX))),
            _ => no_overload(),
        },
        _ => no_overload(),
    }
}
