use super::super::Configuration;
use crate::framework::Point;
use crate::plugins::Handle;

fn names(configuration: &Configuration, scheduler: &str, point: Point) -> Vec<String> {
    let frameworks = crate::frameworks(configuration, &Handle::default(), &[]).unwrap();
    frameworks[scheduler].weighted(point).iter().map(|w| format!("{} {}", w.plugin.name(), w.weight)).collect()
}

/// The seeds' example of default constraints. Clauses: G09.scheduler
#[test]
fn older_versions_are_converted() {
    let seed = "apiVersion: kubescheduler.config.k8s.io/v1alpha2
kind: KubeSchedulerConfiguration

profiles:
  - pluginConfig:
      - name: PodTopologySpread
        args:
          defaultConstraints:
            - maxSkew: 1
              topologyKey: topology.kubernetes.io/zone
              whenUnsatisfiable: ScheduleAnyway
";
    let c = Configuration::parse(seed).unwrap();
    c.check().unwrap();
    let spread = &c.profiles[0].arguments.spread;
    assert_eq!((spread.defaults.len(), spread.system), (1, false));
    let warning = "kubescheduler.config.k8s.io/v1alpha2 KubeSchedulerConfiguration is no longer a version of Kubernetes; it is \
                   converted to kubescheduler.config.k8s.io/v1";
    assert_eq!(c.warnings, [warning]);

    let seed = "apiVersion: kubescheduler.config.k8s.io/v1alpha1
kind: KubeSchedulerConfiguration
algorithmSource:
  provider: DefaultProvider
disablePreemption: true
bindTimeoutSeconds: 7
hardPodAffinitySymmetricWeight: 9
healthzBindAddress: 0.0.0.0:1
";
    let c = Configuration::parse(seed).unwrap();
    c.check().unwrap();
    let post_filter = names(&c, "default-scheduler", Point::PostFilter);
    assert!(post_filter.iter().all(|n| !n.starts_with("DefaultPreemption")), "{post_filter:?}");
    let arguments = &c.profiles[0].arguments;
    assert_eq!((arguments.bind_timeout.as_secs(), arguments.inter_pod_affinity.hard_weight), (7, 9));
    assert_eq!(c.warnings[1..], ["healthzBindAddress has no effect"]);
}

/// Clauses: G09.scheduler
#[test]
fn plugins_of_older_versions_have_their_successors() {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1alpha2\nkind: KubeSchedulerConfiguration\nprofiles:\n";
    let parse = |text: &str| Configuration::parse(&format!("{head}{text}")).map_err(|e| e.to_string());
    let c = parse(
        "- schedulerName: a
  plugins:
    score:
      disabled: [{name: NodeResourcesLeastAllocated}, {name: SelectorSpread}, {name: ImageLocality}]
      enabled: [{name: NodeResourcesMostAllocated, weight: 5}, {name: NodePreferAvoidPods, weight: 10000}]
    unreserve: {enabled: [{name: VolumeBinding}]}
  pluginConfig:
  - name: NodeResourcesMostAllocated
    args: {apiVersion: kubescheduler.config.k8s.io/v1alpha2, kind: NodeResourcesMostAllocatedArgs, resources: [{name: cpu, weight: 3}]}
- schedulerName: b
  plugins:
    score: {disabled: [{name: NodeResourcesLeastAllocated}]}
",
    )
    .unwrap();
    let scores = names(&c, "a", Point::Score);
    assert!(scores.contains(&"NodeResourcesFit 5".to_owned()), "{scores:?}");
    assert!(scores.iter().all(|n| !n.starts_with("ImageLocality")), "{scores:?}");
    let fit = &c.profiles[0].arguments.fit;
    assert!(matches!(fit.strategy, crate::plugins::Strategy::MostAllocated));
    assert_eq!(fit.resources, [("cpu".into(), 3)]);
    let scores = names(&c, "b", Point::Score);
    assert!(scores.iter().all(|n| !n.starts_with("NodeResourcesFit")), "{scores:?}");
    assert!(names(&c, "b", Point::Filter).iter().any(|n| n.starts_with("NodeResourcesFit")));

    let two =
        "- plugins: {score: {enabled: [{name: NodeResourcesMostAllocated}, {name: NodeResourcesLeastAllocated}]}}";
    assert!(parse(two).unwrap_err().contains("cannot both score"), "{two}");
    let unknown = parse("- plugins: {score: {enabled: [{name: NodeLabel}]}}").unwrap();
    assert!(unknown.check().unwrap_err().to_string().contains("ScorePlugin \"NodeLabel\" does not exist"));
    assert!(parse("- pluginz: {}").unwrap_err().contains("unknown field \"profiles[0].pluginz\""));
    assert!(parse("- schedulerName: 1").unwrap_err().contains("cannot unmarshal number"));
}

/// The seeds' policy, and one that names predicates and priorities. Clauses: G09.scheduler
#[test]
fn policies_are_converted() {
    let seed = r#"{"kind": "Policy", "apiVersion": "v1", "extenders": [{"urlPrefix": "http://extender", "bindVerb": "bind",
        "enableHttps": false, "httpTimeout": 300000000,
        "managedResources": [{"name": "example.com/foo", "ignoredByScheduler": true}]}]}"#;
    let c = Configuration::parse(seed).unwrap();
    c.check().unwrap();
    assert_eq!((&*c.extenders[0].url, &*c.extenders[0].bind), ("http://extender", "bind"));
    assert_eq!(c.extenders[0].timeout.as_millis(), 300);
    assert_eq!(c.profiles[0].arguments.fit.ignored, ["example.com/foo".into()]);
    let all = Configuration::default();
    for point in [Point::Filter, Point::Score] {
        assert_eq!(names(&c, "default-scheduler", point), names(&all, "default-scheduler", point));
    }

    let policy =
        |text: &str| Configuration::parse(&format!("apiVersion: v1\nkind: Policy\n{text}")).map_err(|e| e.to_string());
    let c = policy(
        "predicates: [{name: PodFitsResources}, {name: MaxEBSVolumeCount}]
priorities: [{name: MostRequestedPriority, weight: 2}, {name: NodeAffinityPriority, weight: 4}, {name: EqualPriority, weight: 1}]
hardPodAffinitySymmetricWeight: 3
",
    )
    .unwrap();
    c.check().unwrap();
    let filters = names(&c, "default-scheduler", Point::Filter);
    let expected = ["NodeUnschedulable", "TaintToleration", "NodeResourcesFit", "NodeVolumeLimits", "DynamicResources"];
    let plugins: Vec<&str> = filters.iter().filter_map(|n| n.split(' ').next()).collect();
    assert_eq!(plugins, expected);
    let scores = names(&c, "default-scheduler", Point::Score);
    let chosen: Vec<&String> = scores.iter().filter(|n| !n.starts_with("DynamicResources")).collect();
    assert_eq!(chosen, ["NodeAffinity 4", "NodeResourcesFit 2"]);
    assert_eq!(c.profiles[0].arguments.inter_pod_affinity.hard_weight, 3);

    for (text, expected) in [
        ("predicates: [{name: CheckServiceAffinity}]", "no plugin any more for the predicate \"CheckServiceAffinity\""),
        ("priorities: [{name: x, weight: 1}]", "no plugin any more for the priority \"x\""),
        ("priorities: [{name: ImageLocalityPriority}]", "Priority ImageLocalityPriority should have a positive weight"),
        ("predicate: []", "unknown field \"predicate\""),
        ("hardPodAffinitySymmetricWeight: 101", "hardPodAffinityWeight: Invalid value: 101: not in valid range"),
    ] {
        let error = policy(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

/// Clauses: G09.scheduler
#[test]
fn a_configuration_names_the_file_of_its_policy() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("policy.json");
    let configuration = |path: &str| {
        let source = format!("algorithmSource: {{policy: {{file: {{path: {path:?}}}}}}}");
        let head =
            "apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\nschedulerName: mine\n";
        Configuration::parse(&format!("{head}{source}\n")).map_err(|e| e.to_string())
    };
    let path = file.display().to_string();
    assert!(configuration(&path).unwrap_err().starts_with("algorithmSource.policy.file.path: open"));
    std::fs::write(
        &file,
        r#"{"kind": "Policy", "apiVersion": "v1", "priorities": [{"name": "ImageLocalityPriority", "weight": 2}]}"#,
    )
    .unwrap();
    let c = configuration(&path).unwrap();
    c.check().unwrap();
    let scores = names(&c, "mine", Point::Score);
    assert!(
        scores.contains(&"ImageLocality 2".to_owned()) && !scores.iter().any(|n| n.starts_with("NodeAffinity")),
        "{scores:?}"
    );
    std::fs::write(&file, "{}").unwrap();
    assert!(configuration(&path).unwrap_err().contains("Object 'Kind' is missing"));
}
