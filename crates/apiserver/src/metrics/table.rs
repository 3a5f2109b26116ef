//! The metrics of the API server, with upstream's names, labels and buckets.

use metrics::Row;

const REQUEST: &[&str] =
    &["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component", "code"];
const LATENCY: &[&str] = &["verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"];
const RUNNING: &[&str] = &["verb", "group", "version", "resource", "subresource", "scope", "component"];
const TERMINATED: &[&str] = &["verb", "group", "version", "resource", "subresource", "scope", "component", "code"];
const KIND: &[&str] = &["group", "version", "resource"];
const STORED: &[&str] = &["group", "resource"];
const COMMIT: &[&str] = &["operation", "group", "resource"];

const POLICY: &[&str] = &["policy", "policy_binding", "error_type", "enforcement_action"];
const CONDITION: &[&str] = &["name", "kind", "type", "operation"];
/// From a field access to an expression at its cost limit.
const EXPRESSION_SECONDS: &[f64] = &[5e-7, 0.001, 0.01, 0.1, 1.0];

const SECONDS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
const SLI_SECONDS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
const RESPONSE_BYTES: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
const EVENT_BYTES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131_072.0];
const AUTH_SECONDS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
const STEP_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];
const WEBHOOK_SECONDS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

pub const REQUESTS: Row = Row::counter(
    "apiserver_request_total",
    REQUEST,
    "Requests answered, by verb, dry run, group, version, resource, scope, component and HTTP code.",
);
pub const DURATION: Row =
    Row::histogram("apiserver_request_duration_seconds", LATENCY, SECONDS, "How long requests took to answer.");
pub const SLI_DURATION: Row = Row::histogram(
    "apiserver_request_sli_duration_seconds",
    RUNNING,
    SLI_SECONDS,
    "How long requests took to answer, without the time in webhooks and queues.",
);
pub const SIZES: Row =
    Row::histogram("apiserver_response_sizes", RUNNING, RESPONSE_BYTES, "Bytes of the answers to requests that read.");
pub const TERMINATIONS: Row =
    Row::counter("apiserver_request_terminations_total", TERMINATED, "Requests that the server ended in self-defense.");
pub const IN_FLIGHT: Row = Row::gauge(
    "apiserver_current_inflight_requests",
    &["request_kind"],
    "The most requests in flight since this was last read, by kind of request.",
);
pub const LONG_RUNNING: Row =
    Row::gauge("apiserver_longrunning_requests", RUNNING, "Watches and streams that are open.");
pub const DEPRECATED: Row = Row::gauge(
    "apiserver_requested_deprecated_apis",
    &["group", "version", "resource", "subresource", "removed_release"],
    "Deprecated APIs that have been requested.",
);
pub const WATCH_EVENTS: Row = Row::counter("apiserver_watch_events_total", KIND, "Events sent to clients that watch.");
pub const WATCH_SIZES: Row = Row::histogram(
    "apiserver_watch_events_sizes",
    KIND,
    EVENT_BYTES,
    "Bytes of the events sent to clients that watch.",
);
pub const TERMINATED_WATCHERS: Row = Row::counter(
    "apiserver_terminated_watchers_total",
    &["group", "resource"],
    "Watches that were closed because their clients did not read.",
);
pub const HANDSHAKES: Row =
    Row::counter("apiserver_tls_handshake_errors_total", &[], "Connections that ended in their TLS handshake.");
pub const RESOURCE_OBJECTS: Row = Row::gauge("apiserver_resource_objects", STORED, "Objects in the store, by kind.");
pub const STORAGE_OBJECTS: Row = Row::gauge(
    "apiserver_storage_objects",
    &["resource"],
    "[DEPRECATED, consider using apiserver_resource_objects instead] Objects in the store, by kind.",
);
pub const STORAGE_SIZE: Row =
    Row::gauge("apiserver_storage_size_bytes", &["storage_cluster_id"], "Bytes of disk that the store has taken.");
pub const COMMIT_SECONDS: Row = Row::histogram(
    "etcd_request_duration_seconds",
    COMMIT,
    SECONDS,
    "How long the store took to make a write durable, by operation and kind.",
);
pub const COMMITS: Row = Row::counter("etcd_requests_total", COMMIT, "Writes to the store, by operation and kind.");
pub const COMMIT_ERRORS: Row =
    Row::counter("etcd_request_errors_total", COMMIT, "Writes to the store that failed, by operation and kind.");
pub const AUTHENTICATED: Row =
    Row::counter("authenticated_user_requests", &["username"], "Authenticated requests by kind of user name.");
pub const AUTHENTICATIONS: Row =
    Row::counter("authentication_attempts", &["result"], "Attempts to authenticate, by result.");
pub const AUTHENTICATION_SECONDS: Row = Row::histogram(
    "authentication_duration_seconds",
    &["result"],
    AUTH_SECONDS,
    "How long it took to authenticate, by result.",
);
pub const AUTHORIZATIONS: Row =
    Row::counter("authorization_attempts_total", &["result"], "Attempts to authorize, by result.");
pub const AUTHORIZATION_SECONDS: Row = Row::histogram(
    "authorization_duration_seconds",
    &["result"],
    AUTH_SECONDS,
    "How long it took to authorize, by result.",
);
pub const ADMISSION_STEPS: Row = Row::histogram(
    "apiserver_admission_step_admission_duration_seconds",
    &["type", "operation", "rejected"],
    STEP_SECONDS,
    "How long all admission plugins together took, by type (admit or validate) and operation.",
);
pub const ADMISSION_PLUGINS: Row = Row::histogram(
    "apiserver_admission_controller_admission_duration_seconds",
    &["name", "type", "operation", "rejected"],
    STEP_SECONDS,
    "How long an admission plugin took that asks others, by name, type (admit or validate) and operation.",
);
pub const WEBHOOK_SECONDS_BY_NAME: Row = Row::histogram(
    "apiserver_admission_webhook_admission_duration_seconds",
    &["name", "type", "operation", "rejected"],
    WEBHOOK_SECONDS,
    "How long admission webhooks took, by name, type (admit or validate) and operation.",
);
pub const WEBHOOK_REQUESTS: Row = Row::counter(
    "apiserver_admission_webhook_request_total",
    &["name", "type", "operation", "code", "rejected"],
    "Calls of admission webhooks, with the HTTP code of a refusal.",
);
pub const WEBHOOK_REJECTIONS: Row = Row::counter(
    "apiserver_admission_webhook_rejection_count",
    &["name", "type", "operation", "error_type", "rejection_code"],
    "Requests that admission webhooks refused, or that were refused because a webhook could not be called.",
);
pub const WEBHOOK_FAIL_OPEN: Row = Row::counter(
    "apiserver_admission_webhook_fail_open_count",
    &["name", "type"],
    "Requests that continued although a webhook could not be called.",
);
/// Checks of validating policies, and the duration of each failed expression.
pub const POLICY_CHECKS: (Row, Row) = (
    Row::counter(
        "apiserver_validating_admission_policy_check_total",
        POLICY,
        "Validations that did not hold, by policy, binding and what followed.",
    ),
    Row::histogram(
        "apiserver_validating_admission_policy_check_duration_seconds",
        POLICY,
        EXPRESSION_SECONDS,
        "How long validations took that did not hold, by policy, binding and what followed.",
    ),
);
pub const MUTATION_CHECKS: (Row, Row) = (
    Row::counter(
        "apiserver_mutating_admission_policy_check_total",
        &["policy", "policy_binding", "error_type"],
        "Mutations of policies, by policy and binding.",
    ),
    Row::histogram(
        "apiserver_mutating_admission_policy_check_duration_seconds",
        &["policy", "policy_binding", "error_type"],
        EXPRESSION_SECONDS,
        "How long mutations of policies took, by policy and binding.",
    ),
);
pub const CONDITION_SECONDS: Row = Row::histogram(
    "apiserver_admission_match_condition_evaluation_seconds",
    CONDITION,
    &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25],
    "How long match conditions of webhooks and policies took.",
);
pub const CONDITION_ERRORS: Row = Row::counter(
    "apiserver_admission_match_condition_evaluation_errors_total",
    CONDITION,
    "Match conditions of webhooks and policies that had no value.",
);
pub const CONDITION_EXCLUSIONS: Row = Row::counter(
    "apiserver_admission_match_condition_exclusions_total",
    CONDITION,
    "Requests for which webhooks were not called, because their match conditions were false.",
);
pub const CONVERSION_SECONDS: Row = Row::histogram(
    "apiserver_crd_conversion_webhook_duration_seconds",
    &["crd_name", "from_version", "to_version", "succeeded"],
    AUTH_SECONDS,
    "How long conversion webhooks took, by definition and versions.",
);
pub const CONVERSION_CALL_SECONDS: Row = Row::histogram(
    "apiserver_conversion_webhook_duration_seconds",
    &["result", "failure_type"],
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0],
    "How long calls of conversion webhooks took, by what became of them.",
);
pub const CONVERSIONS: Row = Row::counter(
    "apiserver_conversion_webhook_request_total",
    &["result", "failure_type"],
    "Calls of conversion webhooks, by what became of them.",
);
pub const AUDIT_EVENTS: Row =
    Row::counter("apiserver_audit_event_total", &[], "Events that were written to the audit log.");
pub const AUDIT_ERRORS: Row =
    Row::counter("apiserver_audit_error_total", &["plugin"], "Events that could not be written to the audit log.");
pub const AUDIT_LEVELS: Row =
    Row::counter("apiserver_audit_level_total", &["level"], "Requests by the level that the audit policy gives them.");
const FLOW: &[&str] = &["priority_level", "flow_schema"];
const LEVEL: &[&str] = &["priority_level"];
const WAIT_SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

pub const FLOW_REJECTED: Row = Row::counter(
    "apiserver_flowcontrol_rejected_requests_total",
    &["priority_level", "flow_schema", "reason"],
    "Requests that priority and fairness turned away.",
);
pub const FLOW_DISPATCHED: Row = Row::counter(
    "apiserver_flowcontrol_dispatched_requests_total",
    FLOW,
    "Requests that priority and fairness let in.",
);
pub const FLOW_EXECUTING: Row = Row::gauge(
    "apiserver_flowcontrol_current_executing_requests",
    FLOW,
    "Requests that have their seats, watches only until they have begun.",
);
pub const FLOW_QUEUED: Row =
    Row::gauge("apiserver_flowcontrol_current_inqueue_requests", FLOW, "Requests that wait for a seat.");
pub const FLOW_WAITED: Row = Row::histogram(
    "apiserver_flowcontrol_request_wait_duration_seconds",
    &["priority_level", "flow_schema", "execute"],
    WAIT_SECONDS,
    "How long requests waited for a seat, by whether they got one.",
);
pub const FLOW_EXECUTED: Row = Row::histogram(
    "apiserver_flowcontrol_request_execution_seconds",
    &["priority_level", "flow_schema", "type"],
    WAIT_SECONDS,
    "How long requests had their seats, watches (by type) only until they have begun.",
);
pub const FLOW_SEATS: Row =
    Row::gauge("apiserver_flowcontrol_current_executing_seats", FLOW, "Seats of the requests that have theirs.");
pub const LEVEL_NOMINAL: Row =
    Row::gauge("apiserver_flowcontrol_nominal_limit_seats", LEVEL, "Seats that a priority level has nominally.");
pub const LEVEL_LOWER: Row =
    Row::gauge("apiserver_flowcontrol_lower_limit_seats", LEVEL, "Seats that a priority level does not lend.");
pub const LEVEL_UPPER: Row =
    Row::gauge("apiserver_flowcontrol_upper_limit_seats", LEVEL, "Seats that a priority level may have by borrowing.");
pub const LEVEL_CURRENT: Row =
    Row::gauge("apiserver_flowcontrol_current_limit_seats", LEVEL, "Seats that a priority level has now.");
pub const LEVEL_TAKEN: Row =
    Row::gauge("apiserver_flowcontrol_level_executing_seats", LEVEL, "Seats of a priority level that are taken.");
pub const UNAVAILABLE: Row =
    Row::gauge("aggregator_unavailable_apiservice", &["name"], "1 for an APIService that is marked as unavailable.");
pub const BECAME_UNAVAILABLE: Row = Row::counter(
    "aggregator_unavailable_apiservice_total",
    &["name", "reason"],
    "How often an APIService became unavailable, by its name and the reason.",
);
/// Half an hour to a year.
const EXPIRATION: &[f64] = &[
    0.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
    43200.0,
    86400.0,
    172_800.0,
    345_600.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
];
pub const CERTIFICATES: Row = Row::histogram(
    "apiserver_client_certificate_expiration_seconds",
    &[],
    EXPIRATION,
    "How long the certificates still hold that requests were authenticated with.",
);
pub const BUILD: Row = Row::gauge(
    "kubernetes_build_info",
    &[
        "major",
        "minor",
        "git_version",
        "git_commit",
        "git_tree_state",
        "build_date",
        "go_version",
        "compiler",
        "platform",
    ],
    "The version of this program; always 1.",
);
pub const SERVICE_UP: Row = Row::gauge(
    "kemudi_service_up",
    &["component", "service"],
    "Whether a long-running part of this process runs: 0 while it waits to be started again.",
);
pub const SERVICE_RESTARTS: Row = Row::counter(
    "kemudi_service_restarts_total",
    &["component", "service"],
    "How often a long-running part of this process ended and was started again.",
);
pub const REVISION: Row = Row::gauge("kemudi_store_revision", &[], "The newest revision.");
pub const TRANSACTIONS: Row = Row::gauge("kemudi_store_transactions", &[], "Transactions since the start.");
pub const SYNCS: Row = Row::gauge("kemudi_store_syncs", &[], "Syncs of the disk that transactions shared.");

pub const ALL: &[Row] = &[
    REQUESTS,
    DURATION,
    SLI_DURATION,
    SIZES,
    TERMINATIONS,
    IN_FLIGHT,
    LONG_RUNNING,
    DEPRECATED,
    WATCH_EVENTS,
    WATCH_SIZES,
    CONVERSION_SECONDS,
    CONVERSION_CALL_SECONDS,
    CONVERSIONS,
    TERMINATED_WATCHERS,
    HANDSHAKES,
    RESOURCE_OBJECTS,
    STORAGE_OBJECTS,
    STORAGE_SIZE,
    COMMIT_SECONDS,
    COMMITS,
    COMMIT_ERRORS,
    AUTHENTICATED,
    AUTHENTICATIONS,
    AUTHENTICATION_SECONDS,
    AUTHORIZATIONS,
    AUTHORIZATION_SECONDS,
    ADMISSION_STEPS,
    ADMISSION_PLUGINS,
    WEBHOOK_SECONDS_BY_NAME,
    WEBHOOK_REQUESTS,
    WEBHOOK_REJECTIONS,
    WEBHOOK_FAIL_OPEN,
    POLICY_CHECKS.0,
    POLICY_CHECKS.1,
    MUTATION_CHECKS.0,
    MUTATION_CHECKS.1,
    CONDITION_SECONDS,
    CONDITION_ERRORS,
    CONDITION_EXCLUSIONS,
    AUDIT_EVENTS,
    AUDIT_ERRORS,
    AUDIT_LEVELS,
    FLOW_REJECTED,
    FLOW_DISPATCHED,
    FLOW_EXECUTING,
    FLOW_QUEUED,
    FLOW_WAITED,
    FLOW_EXECUTED,
    FLOW_SEATS,
    LEVEL_NOMINAL,
    LEVEL_LOWER,
    LEVEL_UPPER,
    LEVEL_CURRENT,
    LEVEL_TAKEN,
    UNAVAILABLE,
    BECAME_UNAVAILABLE,
    CERTIFICATES,
    BUILD,
    REVISION,
    TRANSACTIONS,
    SYNCS,
    SERVICE_UP,
    SERVICE_RESTARTS,
];
