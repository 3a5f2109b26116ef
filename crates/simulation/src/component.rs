//! Controllers and the scheduler as processes of their own, which crash and are started again.

use crate::link::{CrashPoint, Link};
use client::{Client, Informers, Shutdown, Transport};
use controllers::{Context, Running};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;
use testkit::{SeededRng, VirtualClock};
use tokio::sync::Notify;

/// The caches of a component that is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Caches {
    /// Those it had, as far as their watches have come meanwhile.
    Kept,
    /// New ones, as a new process has them.
    #[default]
    Empty,
}

/// How a component is started again after a crash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    /// How long it is down.
    pub after: Duration,
    /// Its caches afterwards.
    pub caches: Caches,
}

#[derive(Default)]
struct Plan {
    /// The restart after the next crash; none: it stays down until [`Component::restart`].
    restart: Option<Restart>,
    /// The same crash again, this many times.
    again: Option<(CrashPoint, u32)>,
    /// A restart was requested.
    requested: Option<Caches>,
    deaths: u32,
    down: bool,
    /// The number of crashes that were planned.
    number: u32,
}

/// A controller or the scheduler.
pub struct Component {
    name: &'static str,
    pub(crate) link: Arc<Link>,
    /// The clock of the machine on which it runs.
    pub clock: Arc<VirtualClock>,
    plan: Mutex<Plan>,
    changed: Notify,
}

/// Starts a component with its context; none: there is no component of that name.
pub(crate) type Start = Arc<dyn Fn(Context) -> Option<Running> + Send + Sync>;

/// What all components share.
pub(crate) struct Host {
    pub client: Client,
    pub layer: Option<Layer>,
    pub informers: Informers,
    pub rng: Arc<SeededRng>,
    pub shutdown: Shutdown,
}

/// Wraps the transport of components.
pub type Layer = Arc<dyn Fn(Arc<dyn Transport>) -> Arc<dyn Transport> + Send + Sync>;

impl Component {
    /// Starts a component. An `isolated` one has informers of its own, so that cuts and delays of its connection also affect what it reads.
    pub(crate) fn start(
        name: &'static str,
        host: &Arc<Host>,
        clock: Arc<VirtualClock>,
        link_rng: Arc<SeededRng>,
        isolated: bool,
        start: Start,
    ) -> Arc<Self> {
        let link = Link::new(link_rng);
        let component = Arc::new(Self { name, link, clock, plan: Mutex::default(), changed: Notify::new() });
        let (running, host) = (component.clone(), host.clone());
        tokio::spawn(async move {
            let shutdown = host.shutdown.clone();
            shutdown.race(running.supervise(host, isolated, start)).await;
        });
        component
    }

    async fn supervise(self: Arc<Self>, host: Arc<Host>, isolated: bool, start: Start) {
        let mut caches = if isolated { Caches::Empty } else { Caches::Kept };
        // The informers of the component, and what ends them.
        let mut own: Option<(Informers, client::Trigger)> = None;
        loop {
            let life = self.link.begin_life();
            let over = |client: Client| {
                client.over(|inner| {
                    let inner = host.layer.as_ref().map_or_else(|| inner.clone(), |layer| layer(inner.clone()));
                    Arc::new(self.link.transport(inner))
                })
            };
            let client = over(host.client.clone().with_user_agent(self.name));
            if caches == Caches::Empty {
                let (trigger, watching) = client::shutdown();
                // The informers outlive the component, if its caches are kept.
                let reading = host.client.clone().over(|inner| Arc::new(self.link.reading(inner)));
                own = Some((Informers::new(reading, host.rng.clone(), watching), trigger));
            }
            let informers = own.as_ref().map_or_else(|| host.informers.clone(), |(i, _)| i.clone());
            let (trigger, shutdown) = client::shutdown();
            let context = Context {
                name: self.name,
                client,
                informers,
                clock: self.clock.clone(),
                rng: host.rng.clone(),
                shutdown,
            };
            let Some(running) = start(context) else { return };
            tokio::select! {
                biased;
                () = life.killed() => {}
                () = running => {}
            }
            trigger.trigger();
            caches = self.wait_for_restart().await;
            if caches == Caches::Empty
                && let Some((_, trigger)) = own.take()
            {
                trigger.trigger();
            }
        }
    }

    /// Waits until the component is to be started again, and returns the caches it then has.
    async fn wait_for_restart(&self) -> Caches {
        let (restart, number) = {
            let mut plan = self.plan.lock();
            plan.deaths += 1;
            plan.down = true;
            (plan.restart.clone(), plan.number)
        };
        let caches = match restart {
            Some(restart) => {
                tokio::time::sleep(restart.after).await;
                restart.caches
            }
            None => loop {
                let changed = self.changed.notified();
                if let Some(caches) = self.plan.lock().requested.take() {
                    break caches;
                }
                changed.await;
            },
        };
        let mut plan = self.plan.lock();
        plan.down = false;
        plan.requested = None;
        if plan.number != number {
            // Another crash was planned meanwhile.
            return caches;
        }
        match &mut plan.again {
            Some((point, times)) if *times > 0 => {
                *times -= 1;
                let point = point.clone();
                drop(plan);
                self.link.crash(point);
            }
            _ => {
                plan.restart = None;
                plan.again = None;
            }
        }
        caches
    }

    /// The name of the component.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Kills the component at a point, `times` times, each time after its restart. Without a restart it stays down.
    pub fn crash(&self, point: CrashPoint, restart: Option<Restart>, times: u32) {
        {
            let mut plan = self.plan.lock();
            plan.again = Some((point.clone(), if restart.is_some() { times.saturating_sub(1) } else { 0 }));
            plan.restart = restart;
            plan.requested = None;
            plan.number += 1;
        }
        self.link.crash(point);
    }

    /// Starts the component again if it is down.
    pub fn restart(&self, caches: Caches) {
        let mut plan = self.plan.lock();
        if plan.down {
            plan.requested = Some(caches);
            drop(plan);
            self.changed.notify_waiters();
        }
    }

    /// Forgets crashes that have not happened.
    pub fn spare(&self) {
        let mut plan = self.plan.lock();
        plan.again = None;
        plan.number += 1;
        drop(plan);
        self.link.spare();
    }

    /// Whether the component is down.
    pub fn is_down(&self) -> bool {
        self.plan.lock().down
    }

    /// How often it was killed or ended.
    pub fn deaths(&self) -> u32 {
        self.plan.lock().deaths
    }

    /// The number of its successful writes, without those of events and leases.
    pub fn writes(&self) -> u64 {
        self.link.writes()
    }

    /// Cuts or heals the connection to the API server. Of a component that is not isolated, only requests fail: its watches are shared.
    pub fn set_cut(&self, cut: bool) {
        self.link.set_cut(cut);
    }

    /// Sets how long requests take: a random time between the two.
    pub fn set_latency(&self, minimum: Duration, maximum: Duration) {
        self.link.set_latency(minimum, maximum);
    }

    /// Delays the watch events of an isolated component.
    pub fn set_lag(&self, lag: Duration) {
        self.link.set_lag(lag);
    }
}
