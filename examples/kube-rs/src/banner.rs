//! The operator: a Banner becomes a ConfigMap. It knows nothing of deliveries, but for the import of `Action`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, CustomResource, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::serverless::Action; // was: kube::runtime::controller::Action

#[derive(CustomResource, Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[kube(group = "examples.reschedule.dev", version = "v1", kind = "Banner", namespaced, status = "BannerStatus")]
#[serde(rename_all = "camelCase")]
pub struct BannerSpec {
    /// What the ConfigMap says.
    pub text: String,
    /// The time after which it is looked at again; without it, only after a change.
    pub refresh_seconds: Option<u64>,
}

#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BannerStatus {
    pub observed_generation: Option<i64>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the text is empty")]
    Empty,
    #[error("the text is too long")]
    TooLong,
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

pub struct Context {
    pub client: Client,
}

pub async fn reconcile(banner: Arc<Banner>, context: Arc<Context>) -> Result<Action, Error> {
    if banner.spec.text.is_empty() {
        return Err(Error::Empty);
    }
    if banner.spec.text.len() > 1000 {
        return Err(Error::TooLong);
    }
    let namespace = banner.namespace().unwrap_or_default();
    let name = banner.name_any();
    let force = PatchParams::apply("banner").force();
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            owner_references: banner.controller_owner_ref(&()).map(|o| vec![o]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("banner".to_owned(), banner.spec.text.clone())])),
        ..ConfigMap::default()
    };
    Api::<ConfigMap>::namespaced(context.client.clone(), &namespace).patch(&name, &force, &Patch::Apply(&map)).await?;
    let status = json!({"status": {"observedGeneration": banner.metadata.generation}});
    Api::<Banner>::namespaced(context.client.clone(), &namespace)
        .patch_status(&name, &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    Ok(banner.spec.refresh_seconds.map_or_else(Action::await_change, |s| Action::requeue(Duration::from_secs(s))))
}

pub fn error_policy(_: Arc<Banner>, error: &Error, _: Arc<Context>) -> Action {
    match error {
        Error::TooLong => Action::await_change(),
        Error::Empty | Error::Kube(_) => Action::requeue(Duration::from_secs(1)),
    }
}
