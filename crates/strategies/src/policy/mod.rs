//! `policy`.

mod pod_disruption_budget;

kinds! { pod_disruption_budget }
