//! The same operator, resident.

use std::sync::Arc;

use banner::banner::{Banner, Context, error_policy, reconcile};
use futures::{StreamExt, TryFutureExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, runtime::Controller};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), kube::Error> {
    let client = Client::try_default().await?;
    let context = Arc::new(Context { client: client.clone() });
    Controller::new(Api::<Banner>::all(client.clone()), Default::default())
        .owns(Api::<ConfigMap>::all(client), Default::default())
        .shutdown_on_signal()
        .run(
            |banner, context| reconcile(banner, context).map_ok(Into::into),
            |banner, error, context| error_policy(banner, error, context).into(),
            context,
        )
        .for_each(|_| async {})
        .await;
    Ok(())
}
