//! The operator at zero: it serves deliveries of a RescheduleSource on `$PORT`.

use std::{env, sync::Arc, time::Duration};

use banner::{
    banner::{Context, error_policy, reconcile},
    serverless::{Sender, router},
};
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::try_default().await?;
    let context = Arc::new(Context { client: client.clone() });
    let sender = match (env::var("AUDIENCE"), env::var("SENDER")) {
        (Ok(audience), Ok(account)) => Some(Sender { audience, account }),
        (Err(_), Err(_)) => None,
        _ => return Err("AUDIENCE and SENDER belong together: the sink.audience and the account of the source".into()),
    };
    let app = router(client, context, reconcile, error_policy, Duration::from_secs(60), sender);
    let port = env::var("PORT").unwrap_or_else(|_| "8080".to_owned()).parse::<u16>()?;
    let mut terminated = signal(SignalKind::terminate())?;
    let listener = tokio::net::TcpListener::bind(("0.0.0.0", port)).await?;
    let stop = async move {
        terminated.recv().await;
    };
    axum::serve(listener, app).with_graceful_shutdown(stop).await?; // runs may end
    Ok(())
}
