//! Leader election among the servers of a cluster: controllers and scheduler run on one of them at a time.

use client::lease::{Election, Elector};
use client::{Client, Shutdown};
use meta::{Clock, Rng};
use std::sync::Arc;
use std::time::Duration;
use supervisor::{Component, OnEnd, Supervisor};
use tokio::runtime::Handle;

/// A killed leader is replaced within 13 seconds: the others see its lease unchanged for this long, and look once in 1 to 2.2 seconds. (Upstream's
/// defaults of 15, 10 and 2 seconds take up to 24.)
const LEASE: Duration = Duration::from_secs(8);
const RENEW_DEADLINE: Duration = Duration::from_secs(6);
const RETRY: Duration = Duration::from_secs(1);

/// What a candidate needs.
#[derive(Clone)]
pub struct Candidate {
    /// Identity of this server, unique among the candidates.
    pub identity: String,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
    pub supervisor: Supervisor,
    pub shutdown: Shutdown,
    /// The threads on which the leader works.
    pub runtime: Handle,
}

impl Candidate {
    /// Runs for the lease `name` until the shutdown, and starts the services of `component` for as long as it leads.
    pub fn run(
        &self,
        name: &'static str,
        component: &'static str,
        client: Client,
        start: impl Fn(&Component) + Clone + Send + Sync + 'static,
    ) {
        let elections = self.supervisor.component(crate::components::MEMBERSHIP, &self.shutdown, &self.runtime);
        let this = self.clone();
        elections.spawn_graceful(name, OnEnd::Restart, move || {
            let (this, client, start) = (this.clone(), client.clone(), start.clone());
            async move {
                while !this.shutdown.is_triggered() {
                    this.lead_once((name, component), &client, &start).await;
                }
            }
        });
    }

    async fn lead_once(
        &self,
        (name, component): (&'static str, &'static str),
        client: &Client,
        start: &impl Fn(&Component),
    ) {
        let mut election = Election::new("kube-system", name, &self.identity);
        (election.duration, election.renew_deadline, election.retry) = (LEASE, RENEW_DEADLINE, RETRY);
        let elector = Elector::new(client, election, self.clock.clone(), self.rng.clone());
        let lead = |term: Shutdown| async move {
            tracing::info!(lease = name, "this server leads");
            let component = self.supervisor.component(component, &term, &self.runtime);
            start(&component);
            term.wait().await;
            component.ended().await;
        };
        elector.run(self.shutdown.clone(), lead).await;
    }
}
