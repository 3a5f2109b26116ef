//! Divides the seats of the server among priority levels: each level has a nominal number, lends some of the seats it does not use, and
//! borrows seats that others lend (`apf conc_alloc.go`).

/// The bounds and the target of one level, in seats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    pub minimum: f64,
    pub maximum: f64,
    /// At least `minimum`.
    pub target: f64,
}

/// The least target, so that levels without demand share equally.
const MIN_TARGET: f64 = 0.001;

/// Divides `sum` seats: every level gets the same fraction of its target, within its bounds. Returns the seats by claim, and the fraction.
pub(crate) fn allocate(sum: f64, claims: &[Claim]) -> (Vec<f64>, f64) {
    let seats_at = |fraction: f64| -> Vec<f64> {
        claims
            .iter()
            .map(|c| (fraction * c.target.max(MIN_TARGET)).clamp(c.minimum, c.maximum.max(c.minimum)))
            .collect()
    };
    let total = |fraction: f64| seats_at(fraction).iter().sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    if claims.is_empty() || total(0.0) >= sum {
        return (seats_at(0.0), 0.0);
    }
    let maximum: f64 = claims.iter().map(|c| c.maximum.max(c.minimum)).sum();
    if maximum <= sum {
        return (claims.iter().map(|c| c.maximum.max(c.minimum)).collect(), f64::MAX);
    }
    while total(high) < sum {
        high *= 2.0;
    }
    // The total grows continuously with the fraction: bisect until floating point has no finer steps.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if total(middle) < sum { low = middle } else { high = middle }
    }
    (seats_at(high), high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_divided_in_proportion_within_bounds() {
        let check = |sum: f64, claims: &[[f64; 3]], want: &[f64]| {
            let claims: Vec<Claim> = claims
                .iter()
                .map(|[minimum, maximum, target]| Claim { minimum: *minimum, maximum: *maximum, target: *target })
                .collect();
            let (got, _) = allocate(sum, &claims);
            assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-6), "{got:?}, not {want:?}");
        };
        check(100.0, &[[0.0, 100.0, 10.0], [0.0, 100.0, 30.0]], &[25.0, 75.0]);
        check(100.0, &[[40.0, 100.0, 40.0], [10.0, 100.0, 60.0]], &[40.0, 60.0]);
        check(100.0, &[[0.0, 20.0, 50.0], [0.0, 100.0, 50.0]], &[20.0, 80.0]);
        check(100.0, &[[60.0, 100.0, 60.0], [60.0, 100.0, 60.0]], &[60.0, 60.0]);
        check(100.0, &[[0.0, 30.0, 1.0], [0.0, 30.0, 1.0]], &[30.0, 30.0]);
        check(10.0, &[[0.0, 100.0, 0.0], [0.0, 100.0, 0.0]], &[5.0, 5.0]);
        check(10.0, &[], &[]);
    }
}
