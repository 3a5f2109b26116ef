//! Usage of pods and containers: that of their control groups, or what the runtime reports where its containers have others.

use k8s_cri::v1;
use runtime::{Result, Stats, Usage};

use crate::records::timestamp;
use crate::{Inner, blocking};

impl Inner {
    pub(crate) async fn pod_stats(&self, pod: &str) -> Result<Stats> {
        let path = self.cgroup(&self.sandbox(pod).await?.pod.config.cgroup_parent);
        let hierarchies = self.hierarchies.clone();
        let usage = blocking(move || Ok(hierarchies.usage(&path))).await?;
        Ok(Stats { at: (self.options.clock)(), usage })
    }

    pub(crate) async fn container_stats(&self, id: &str) -> Result<Stats> {
        let path = self.container_cgroup(&self.container(id).await?).await?;
        let hierarchies = self.hierarchies.clone();
        let usage = blocking(move || Ok(hierarchies.usage(&path))).await?;
        if usage != Usage::default() {
            return Ok(Stats { at: (self.options.clock)(), usage });
        }
        Ok(reported(&self.connection.container_stats(id).await?))
    }
}

fn reported(stats: &v1::ContainerStats) -> Stats {
    let value = |value: Option<v1::UInt64Value>| value.map_or(0, |v| v.value);
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    let working_set = value(memory.working_set_bytes);
    let usage = Usage {
        cpu_nanoseconds: value(cpu.usage_core_nano_seconds),
        memory: value(memory.usage_bytes).max(working_set),
        working_set,
        rss: value(memory.rss_bytes),
        swap: value(stats.swap.unwrap_or_default().swap_usage_bytes),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        ..Usage::default()
    };
    Stats { at: timestamp(cpu.timestamp).unwrap_or_default(), usage }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_the_runtime_are_understood() {
        let number = |value| Some(v1::UInt64Value { value });
        let stats = v1::ContainerStats {
            cpu: Some(v1::CpuUsage {
                timestamp: 3_000_000_000,
                usage_core_nano_seconds: number(5),
                ..Default::default()
            }),
            memory: Some(v1::MemoryUsage { working_set_bytes: number(70), ..Default::default() }),
            ..Default::default()
        };
        let Stats { at, usage } = reported(&stats);
        assert_eq!((at.secs, usage.cpu_nanoseconds, usage.memory, usage.working_set), (3, 5, 70, 70));
    }
}
