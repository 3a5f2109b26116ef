use super::*;
use crate::framework::Point;
use crate::plugins::Handle;

fn parse(text: &str) -> Result<Configuration, String> {
    let head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
    let configuration = Configuration::parse(&format!("{head}{text}")).map_err(|e| e.to_string())?;
    configuration.check().map_err(|e| e.to_string())?;
    Ok(configuration)
}

fn names(configuration: &Configuration, scheduler: &str, point: Point) -> Vec<String> {
    let frameworks = crate::frameworks(configuration, &Handle::default(), &[]).unwrap();
    frameworks[scheduler].weighted(point).iter().map(|w| format!("{} {}", w.plugin.name(), w.weight)).collect()
}

#[test]
fn an_empty_configuration_is_the_default_one() {
    let c = parse("").unwrap();
    assert_eq!(c.profiles.len(), 1);
    let scores = [
        "TaintToleration 3",
        "NodeAffinity 2",
        "NodeResourcesFit 1",
        "PodTopologySpread 2",
        "InterPodAffinity 2",
        "NodeResourcesBalancedAllocation 1",
        "ImageLocality 1",
    ];
    let ours: Vec<String> = names(&c, "default-scheduler", Point::Score);
    let ours: Vec<&String> = ours.iter().filter(|n| scores.contains(&n.as_str())).collect();
    assert_eq!(ours, scores);
    assert_eq!(c.backoff, Backoff::default());
}

/// Clauses: Q06.disable, Q06.profiles
#[test]
fn profiles_enable_and_disable_plugins() {
    let c = parse(
        "podInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 7\npercentageOfNodesToScore: 70\nprofiles:
- schedulerName: a
  plugins:
    postFilter: {disabled: [{name: DefaultPreemption}]}
    score:
      disabled: [{name: '*'}]
      enabled: [{name: ImageLocality, weight: 0}, {name: NodeResourcesFit, weight: 5}]
- schedulerName: b
  percentageOfNodesToScore: 10
  plugins:
    multiPoint: {disabled: [{name: PodTopologySpread}], enabled: [{name: TaintToleration, weight: 9}]}
    filter: {enabled: [{name: NodePorts}, {name: NodeName}]}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: example.com/gpu, weight: 3}]}}
",
    )
    .unwrap();
    assert_eq!(names(&c, "a", Point::Score), ["ImageLocality 1", "NodeResourcesFit 5"]);
    let post_filter = names(&c, "a", Point::PostFilter);
    assert!(post_filter.iter().all(|n| !n.starts_with("DefaultPreemption")), "{post_filter:?}");
    let filter = names(&c, "b", Point::Filter);
    assert_eq!(filter[..3], ["NodePorts 1", "NodeName 1", "NodeUnschedulable 1"], "configured again for the point");
    assert!(!filter.iter().any(|n| n.starts_with("PodTopologySpread")));
    assert_eq!(names(&c, "b", Point::Score)[0], "TaintToleration 9");
    let fit = &c.profiles[1].arguments.fit;
    assert_eq!(
        (&fit.strategy, &fit.resources),
        (&crate::plugins::Strategy::MostAllocated, &vec![("example.com/gpu".into(), 3)])
    );
    let frameworks = crate::frameworks(&c, &Handle::default(), &[]).unwrap();
    assert_eq!((frameworks["a"].percentage, frameworks["b"].percentage), (Some(70), Some(10)));
    assert_eq!((c.backoff.initial.as_secs(), c.backoff.max.as_secs()), (2, 7));
}

#[test]
fn invalid_configurations_are_refused_with_upstreams_errors() {
    let profile = |text: &str| format!("profiles:\n- {{{text}}}\n");
    let args = |plugin: &str, args: &str| profile(&format!("pluginConfig: [{{name: {plugin}, args: {args}}}]"));
    let cases = [
        ("foo: 1".to_owned(), "strict decoding error: unknown field \"foo\""),
        (
            "profiles: [{plugins: {score: {only: []}}}]".into(),
            "strict decoding error: unknown field \"profiles[0].plugins.score.only\"",
        ),
        ("parallelism: 0".into(), "parallelism: Invalid value: 0: should be an integer value greater than zero"),
        (
            "percentageOfNodesToScore: 101".into(),
            "percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]",
        ),
        ("podInitialBackoffSeconds: 0".into(), "podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"),
        (
            "podInitialBackoffSeconds: 20".into(),
            "podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds",
        ),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]".into(),
            "profiles[1].schedulerName: Duplicate value: \"profiles[0].schedulerName\"",
        ),
        ("profiles: [{schedulerName: a}, {}]".into(), "profiles[1].schedulerName: Required value"),
        (
            profile("plugins: {score: {enabled: [{name: Fancy}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: ScorePlugin \"Fancy\" does not exist",
        ),
        (
            profile("plugins: {multiPoint: {enabled: [{name: Fancy}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: PreFilterPlugin \"Fancy\" does not exist",
        ),
        (
            profile("plugins: {bind: {enabled: [{name: NodeName}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: plugin \"NodeName\" does not extend BindPlugin plugin",
        ),
        (
            profile("plugins: {bind: {disabled: [{name: '*'}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: at least one bind plugin is needed for profile with scheduler name \"default-scheduler\"",
        ),
        (
            profile("plugins: {queueSort: {disabled: [{name: '*'}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: only one queue sort plugin required for profile with scheduler name \"default-scheduler\", but got 0",
        ),
        (
            profile("plugins: {score: {enabled: [{name: ImageLocality, weight: 2147483647}, {name: ImageLocality}]}}"),
            "initializing profiles: creating profile for scheduler name default-scheduler: plugin \"ImageLocality\" already registered as \"ScorePlugin\"",
        ),
        (
            args("InterPodAffinity", "{hardPodAffinityWeight: 101}"),
            "profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
        ),
        (
            args("NodeResourcesFit", "{scoringStrategy: {type: Fancy}}"),
            "profiles[0].pluginConfig[0].args.scoringStrategy.type: Unsupported value: \"Fancy\": supported values: \"LeastAllocated\", \"MostAllocated\", \"RequestedToCapacityRatio\"",
        ),
        (
            args("NodeResourcesFit", "{scoringStrategies: {}}"),
            "strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeResourcesFit: strict decoding error: unknown field \"scoringStrategies\"",
        ),
        (
            args("NodeResourcesFit", "{kind: InterPodAffinityArgs}"),
            "decoding .profiles[0].pluginConfig[0]: args for plugin NodeResourcesFit were not of type NodeResourcesFitArgs.kubescheduler.config.k8s.io, got InterPodAffinityArgs.kubescheduler.config.k8s.io",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]".into(),
            "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]".into(),
            "extenders: Invalid value: \"found 2 extenders implementing bind\": only one extender can implement bind",
        ),
        (
            "extenders: [{urlPrefix: 'http://x', managedResources: [{name: cpu}]}]".into(),
            "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(&text).unwrap_err(), expected, "{text}");
    }
    let other =
        Configuration::parse("apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration\n");
    let error =
        "no kind \"KubeSchedulerConfiguration\" is registered for version \"kubescheduler.config.k8s.io/v1beta3\"";
    assert_eq!(other.unwrap_err().to_string(), error);
    assert_eq!(Configuration::parse("{}").unwrap_err().to_string(), "Object 'Kind' is missing in '{}'");
}

/// Clauses: R06.extender
#[test]
fn extenders_take_over_resources() {
    let c = parse(
        "extenders:
- {urlPrefix: 'http://one', filterVerb: f, ignorable: true}
- urlPrefix: http://two/s
  prioritizeVerb: p
  weight: 2
  httpTimeout: 300ms
  nodeCacheCapable: true
  managedResources: [{name: example.com/fpga, ignoredByScheduler: true}, {name: example.com/gpu}]
",
    )
    .unwrap();
    let urls: Vec<&str> = c.extenders.iter().map(|e| &*e.url).collect();
    assert_eq!(urls, ["http://two/s", "http://one"], "those that may fail come last");
    assert_eq!((c.extenders[0].timeout.as_millis(), c.extenders[1].timeout.as_secs()), (300, 5));
    assert_eq!(c.profiles[0].arguments.fit.ignored, ["example.com/fpga".into()]);
}
