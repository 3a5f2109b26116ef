//! How the seats of the server are shared between priority levels: each has its nominal number, lends some of what it does not
//! use, and borrows what others lend (`apf conc_alloc.go`).

/// A level that wants seats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Claim {
    pub least: f64,
    pub most: f64,
    /// At least `least`.
    pub target: f64,
}

/// A target is never nothing: shares of what nobody wants are equal.
const MIN_TARGET: f64 = 0.001;

/// Shares out `sum`: everybody gets the same fraction of the target, within the bounds. The fraction beside it.
pub(crate) fn share(sum: f64, claims: &[Claim]) -> (Vec<f64>, f64) {
    let of = |fraction: f64| -> Vec<f64> {
        claims.iter().map(|c| (fraction * c.target.max(MIN_TARGET)).clamp(c.least, c.most.max(c.least))).collect()
    };
    let total = |fraction: f64| of(fraction).iter().sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    if claims.is_empty() || total(0.0) >= sum {
        return (of(0.0), 0.0);
    }
    let most: f64 = claims.iter().map(|c| c.most.max(c.least)).sum();
    if most <= sum {
        return (claims.iter().map(|c| c.most.max(c.least)).collect(), f64::MAX);
    }
    while total(high) < sum {
        high *= 2.0;
    }
    // It grows with the fraction and has no steps: half the way each time, until floating point has no more.
    for _ in 0..200 {
        let middle = f64::midpoint(low, high);
        if total(middle) < sum { low = middle } else { high = middle }
    }
    (of(high), high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seats_are_shared_fairly_within_bounds() {
        let check = |sum: f64, claims: &[[f64; 3]], want: &[f64]| {
            let claims: Vec<Claim> = claims
                .iter()
                .map(|[least, most, target]| Claim { least: *least, most: *most, target: *target })
                .collect();
            let (got, _) = share(sum, &claims);
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
