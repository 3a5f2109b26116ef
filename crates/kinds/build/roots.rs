// The types whose schemas are taken from `k8s-openapi`; what they refer to follows by itself.
roots! {
    api::admissionregistration::v1: MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
        MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingWebhookConfiguration;
    api::apps::v1: ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet;
    api::authentication::v1: SelfSubjectReview, TokenRequest, TokenReview;
    api::authorization::v1: LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview,
        SubjectAccessReview;
    api::autoscaling::v1: HorizontalPodAutoscaler, Scale;
    api::autoscaling::v2: HorizontalPodAutoscaler;
    api::batch::v1: CronJob, Job;
    api::certificates::v1: CertificateSigningRequest;
    api::coordination::v1: Lease;
    api::core::v1: Binding, ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node,
        PersistentVolume, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount;
    api::discovery::v1: EndpointSlice;
    api::events::v1: Event;
    api::flowcontrol::v1: FlowSchema, PriorityLevelConfiguration;
    api::networking::v1: IPAddress, Ingress, IngressClass, NetworkPolicy, ServiceCIDR;
    api::node::v1: RuntimeClass;
    api::policy::v1: Eviction, PodDisruptionBudget;
    api::rbac::v1: ClusterRole, ClusterRoleBinding, Role, RoleBinding;
    api::resource::v1: DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice;
    api::scheduling::v1: PriorityClass;
    api::storage::v1: CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
        VolumeAttributesClass;
    apiextensions_apiserver::pkg::apis::apiextensions::v1: CustomResourceDefinition;
    apimachinery::pkg::apis::meta::v1: APIGroupList, APIResourceList, APIVersions, Patch, Status;
    apimachinery::pkg::version: Info;
    kube_aggregator::pkg::apis::apiregistration::v1: APIService;
}
