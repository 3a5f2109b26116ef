//! The progress that the download of a layer must make as a whole, over all its connections.
//!
//! **Invariant.** A download ends in a time that depends on the size of the layer alone: only bytes beyond the furthest one so far
//! count, and what is required in each period doubles until it is [`DOUBLINGS`] times doubled.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::puller::Limits;

/// Periods of a stall in which the progress is measured: a connection that broke silently may be resumed.
const STALLS: u32 = 5;
/// How often the required progress doubles.
const DOUBLINGS: u32 = 4;

pub(crate) struct Pace {
    begun: Instant,
    period: Duration,
    /// Bytes in the first period.
    first: u64,
}

impl Pace {
    pub fn start(limits: &Limits) -> Pace {
        Pace { begun: Instant::now(), period: limits.stall * STALLS, first: limits.progress * u64::from(STALLS) }
    }

    /// Errors if `bytes`, all that has arrived, are too few by now.
    pub fn check(&self, host: &str, bytes: u64) -> Result<(), Error> {
        let elapsed = self.begun.elapsed();
        let required = self.required(elapsed);
        if bytes >= required {
            return Ok(());
        }
        Err(Error::TooSlow { host: host.to_owned(), bytes, required, elapsed })
    }

    /// Bytes that must have arrived after this time.
    fn required(&self, elapsed: Duration) -> u64 {
        let periods = elapsed.as_nanos().checked_div(self.period.as_nanos()).unwrap_or(0);
        let periods = u64::try_from(periods).unwrap_or(u64::MAX);
        let growing = periods.min(u64::from(DOUBLINGS));
        let constant = periods - growing;
        self.first.saturating_mul(((1 << growing) - 1) + constant.saturating_mul(1 << DOUBLINGS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_required_progress_doubles() {
        let limits = Limits::default();
        let pace = Pace::start(&limits);
        let minutes = |minutes: u64| pace.required(Duration::from_secs(minutes * 60)) / limits.progress;
        assert_eq!([0, 4, 5, 9, 10, 15, 20, 25, 60].map(minutes), [0, 0, 5, 5, 15, 35, 75, 155, 715]);
        pace.check("h", 0).unwrap();
        tokio::time::advance(Duration::from_secs(301)).await;
        pace.check("h", 320 << 10).unwrap();
        let error = pace.check("h", 1000).unwrap_err().to_string();
        assert_eq!(error, "h: downloading a layer: 1000 bytes in 301s are too few, at least 327680 are required");
    }
}
