//! The operator against a real API server: its answers, and the same scenario resident and behind a source.

use std::{
    error::Error,
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    http::{Request, Response},
};
use banner::{
    banner::{Banner, BannerSpec, Context, error_policy, reconcile},
    serverless::{Action, Sender, router},
};
use futures::{StreamExt, TryFutureExt};
use k8s_openapi::{
    api::{
        authentication::v1::TokenRequest,
        core::v1::{ConfigMap, Namespace, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, CustomResourceExt, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::Controller,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{Instant, sleep},
};
use tower::ServiceExt;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// What the handlers did: the object, its generation, and whether it failed.
type Journal = Arc<Mutex<Vec<(String, String)>>>;

struct Cluster {
    client: Client,
    _process: Child, // it ends with its standard input
}

async fn cluster() -> Result<Cluster> {
    let program = std::env::var("CLUSTER_BINARY").expect("CLUSTER_BINARY is not set: make rust builds it");
    let mut process = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).await?;
    let ready: Value = serde_json::from_str(&line)?;
    let file = Kubeconfig::read_from(ready["kubeconfig"].as_str().expect("a path"))?;
    let client = Client::try_from(Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?)?;
    create(&Api::<CustomResourceDefinition>::all(client.clone()), json!(Banner::crd())).await;
    let banners = Api::<Banner>::all(client.clone());
    until("banners are served", async || banners.list(&Default::default()).await.is_ok()).await;
    Ok(Cluster { client, _process: process })
}

async fn until(what: &str, so: impl AsyncFn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !so().await {
        assert!(Instant::now() < end, "waited in vain: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn create<K: Clone + serde::Serialize + DeserializeOwned + std::fmt::Debug>(api: &Api<K>, value: Value) -> K {
    let object = serde_json::from_value(value).expect("the object is well formed");
    api.create(&PostParams::default(), &object).await.expect("the object is created")
}

impl Cluster {
    async fn namespace(&self, name: &str) {
        create(&Api::<Namespace>::all(self.client.clone()), json!({"metadata": {"name": name}})).await;
    }

    /// The routes of an operator that writes a journal.
    fn operator(&self, journal: &Journal, sender: Option<Sender>) -> Router {
        let journal = journal.clone();
        let noted = move |banner: Arc<Banner>, context| {
            let journal = journal.clone();
            async move {
                match banner.spec.text.as_str() {
                    "panic" => panic!("the text says so"),
                    "hang" => std::future::pending().await,
                    _ => noting(banner, context, journal).await,
                }
            }
        };
        let context = Arc::new(Context { client: self.client.clone() });
        router(self.client.clone(), context, noted, error_policy, Duration::from_secs(2), sender)
    }
}

async fn noting(
    banner: Arc<Banner>,
    context: Arc<Context>,
    journal: Journal,
) -> std::result::Result<Action, banner::banner::Error> {
    let name = banner.name_any();
    let result = reconcile(banner.clone(), context).await;
    let what =
        format!("{} {}", banner.metadata.generation.unwrap_or_default(), if result.is_ok() { "ok" } else { "failed" });
    journal.lock().expect("no panic").push((name, what));
    result
}

fn spec(text: &str, refresh_seconds: Option<u64>) -> BannerSpec {
    BannerSpec { text: text.to_owned(), refresh_seconds }
}

async fn deliver(operator: &Router, key: &str, token: Option<&str>) -> (u16, Option<String>) {
    let mut request = Request::post("/").header("Ce-Reschedulekey", key);
    if let Some(token) = token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let request = request.body(Body::from("{}")).expect("a request");
    let answer: Response<Body> = operator.clone().oneshot(request).await.expect("an answer");
    let after = answer.headers().get("Reschedule-After").map(|v| v.to_str().expect("a text").to_owned());
    (answer.status().as_u16(), after)
}

// One test, because they share the cluster, whose controller has a port that has no setting.
#[tokio::test]
async fn the_operator() -> Result {
    let cluster = cluster().await?;
    answers(&cluster).await;
    senders(&cluster).await?;
    let resident = resident(&cluster).await;
    let behind = behind(&cluster).await?;
    assert_eq!(behind, resident, "the runs behind a source differ from the resident ones");
    Ok(())
}

/// The table of docs/kube-rs.md.
async fn answers(cluster: &Cluster) {
    cluster.namespace("answers").await;
    let operator = cluster.operator(&Journal::default(), None);
    let banners = Api::<Banner>::namespaced(cluster.client.clone(), "answers");
    let long = "x".repeat(2000);
    for (name, spec, status, after) in [
        ("again", spec("hello", Some(300)), 204, Some("300000ms")),
        ("done", spec("hello", None), 204, None),
        ("fails", spec("", None), 503, Some("1000ms")),
        ("gives-up", spec(&long, None), 422, None),
        ("panics", spec("panic", None), 503, None),
        ("hangs", spec("hang", None), 503, None),
    ] {
        banners.create(&PostParams::default(), &Banner::new(name, spec)).await.expect("created");
        let answer = deliver(&operator, &format!("Banner/answers/{name}"), None).await;
        assert_eq!(answer, (status, after.map(str::to_owned)), "{name}");
    }
    assert_eq!(deliver(&operator, "Banner/answers/absent", None).await, (204, Some("never".to_owned())));
    for key in ["", "Other/answers/x", "Banner//x", "Banner/answers/../x"] {
        assert_eq!(deliver(&operator, key, None).await, (400, None), "{key}");
    }
    let probe = operator.oneshot(Request::get("/").body(Body::empty()).expect("a request")).await.expect("an answer");
    assert_eq!(probe.status().as_u16(), 200);
}

/// Only the account of the source, with a token for the audience.
async fn senders(cluster: &Cluster) -> Result {
    cluster.namespace("senders").await;
    let accounts = Api::<ServiceAccount>::namespaced(cluster.client.clone(), "senders");
    let sender = Sender { audience: "banners".to_owned(), account: "system:serviceaccount:senders:source".to_owned() };
    let operator = cluster.operator(&Journal::default(), Some(sender));
    for (account, audience, status) in
        [("source", "banners", 204), ("source", "other", 401), ("another", "banners", 403)]
    {
        if accounts.get_opt(account).await?.is_none() {
            create(&accounts, json!({"metadata": {"name": account}})).await;
        }
        let request: TokenRequest = serde_json::from_value(json!({"spec": {"audiences": [audience]}}))?;
        let made = accounts.create_token_request(account, &PostParams::default(), &request).await?;
        let token = made.status.and_then(|s| s.token).expect("a token");
        let answer = deliver(&operator, "Banner/senders/absent", Some(&token)).await;
        assert_eq!(answer.0, status, "{account} for {audience}");
    }
    assert_eq!(deliver(&operator, "Banner/senders/absent", None).await.0, 401);
    assert_eq!(deliver(&operator, "Banner/senders/absent", Some("forged")).await.0, 401);
    Ok(())
}

/// Makes, changes and deletes objects, and returns the first runs of each.
async fn scenario(cluster: &Cluster, namespace: &str, journal: &Journal) -> Vec<(String, Vec<String>)> {
    let banners = Api::<Banner>::namespaced(cluster.client.clone(), namespace);
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), namespace);
    let runs = |name: &str| -> Vec<String> {
        journal.lock().expect("no panic").iter().filter(|(n, _)| n == name).map(|(_, what)| what.clone()).collect()
    };
    let text = async |name: &str| maps.get_opt(name).await.ok().flatten().and_then(|m| m.data?.get("banner").cloned());
    let change = async |name: &str, text: &str| {
        let patch = Patch::Merge(json!({"spec": {"text": text}}));
        banners.patch(name, &PatchParams::default(), &patch).await.expect("changed");
    };
    for (name, spec) in [("plain", spec("hello", None)), ("fails", spec("", None)), ("polls", spec("hello", Some(1)))] {
        banners.create(&PostParams::default(), &Banner::new(name, spec)).await.expect("created");
    }
    until("the plain one is there", async || text("plain").await.as_deref() == Some("hello")).await;
    change("plain", "bye").await;
    until("the plain one has changed", async || text("plain").await.as_deref() == Some("bye")).await;
    // Another hand changes what the operator owns.
    let forged = Patch::Merge(json!({"data": {"banner": "forged"}}));
    maps.patch("plain", &PatchParams::default(), &forged).await.expect("forged");
    until("it is repaired", async || text("plain").await.as_deref() == Some("bye")).await;
    until("it failed three times", async || runs("fails").len() >= 3).await;
    change("fails", "at last").await;
    until("it succeeds", async || text("fails").await.as_deref() == Some("at last")).await;
    until("it polls", async || runs("polls").len() >= 4).await;
    let polled = runs("polls"); // a run that is under way at the deletion fails, and it is chance whether one is
    banners.delete("polls", &DeleteParams::default()).await.expect("deleted");
    sleep(Duration::from_millis(1500)).await; // a run after the deletion would come by now
    let last = runs("polls").len();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(runs("polls").len(), last, "a deleted object is still reconciled");
    // Own writes lead to runs, whose number depends on how they fall together. What counts is what they see.
    let mut seen: Vec<(String, Vec<String>)> = Vec::new();
    for (name, mut distinct) in [("plain", runs("plain")), ("fails", runs("fails")), ("polls", polled)] {
        distinct.dedup();
        seen.push((name.to_owned(), distinct));
    }
    seen
}

async fn resident(cluster: &Cluster) -> Vec<(String, Vec<String>)> {
    cluster.namespace("resident").await;
    let journal = Journal::default();
    let context = Arc::new(Context { client: cluster.client.clone() });
    let banners = Api::<Banner>::namespaced(cluster.client.clone(), "resident");
    let maps = Api::<ConfigMap>::namespaced(cluster.client.clone(), "resident");
    let written = journal.clone();
    let run = Controller::new(banners, Default::default())
        .owns(maps, Default::default())
        .run(
            move |banner, context| noting(banner, context, written.clone()).map_ok(Into::into),
            |banner, error, context| error_policy(banner, error, context).into(),
            context,
        )
        .for_each(|_| async {});
    let task = tokio::spawn(run);
    let seen = scenario(cluster, "resident", &journal).await;
    task.abort();
    seen
}

async fn behind(cluster: &Cluster) -> Result<Vec<(String, Vec<String>)>> {
    cluster.namespace("behind").await;
    let journal = Journal::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let operator = cluster.operator(&journal, None);
    tokio::spawn(async move { axum::serve(listener, operator).await });
    let client = &cluster.client;
    create(&Api::<ServiceAccount>::namespaced(client.clone(), "behind"), json!({"metadata": {"name": "watcher"}}))
        .await;
    let role = json!({"metadata": {"name": "banner-watcher"}, "rules": [
        {"apiGroups": ["examples.reschedule.dev"], "resources": ["banners"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]});
    create(&Api::<ClusterRole>::all(client.clone()), role).await;
    let binding = json!({"metadata": {"name": "banner-watcher"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "banner-watcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": "behind"}]});
    create(&Api::<ClusterRoleBinding>::all(client.clone()), binding).await;
    let kind = GroupVersionKind::gvk("sources.reschedule.dev", "v1alpha1", "RescheduleSource");
    let sources = Api::<DynamicObject>::namespaced_with(client.clone(), "behind", &ApiResource::from_gvk(&kind));
    let api = "examples.reschedule.dev/v1";
    let source = json!({"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSource",
        "metadata": {"name": "banners"},
        "spec": {"sink": {"uri": url}, "watch": {"serviceAccountName": "watcher", "resources": [
            {"apiVersion": api, "kind": "Banner"},
            {"apiVersion": "v1", "kind": "ConfigMap", "owner": {"apiVersion": api, "kind": "Banner"}}]}}});
    create(&sources, source).await;
    until("the source is ready", async || {
        let Ok(source) = sources.get("banners").await else { return false };
        let conditions = source.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
    })
    .await;
    Ok(scenario(cluster, "behind", &journal).await)
}
