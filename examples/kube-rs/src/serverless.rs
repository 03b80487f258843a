//! Serves deliveries of a RescheduleSource with the `reconcile` and `error_policy` of a kube-rs controller.
//!
//! Copy this file into an operator. The one change to the operator's own code is the import of [`Action`].

use std::{fmt::Debug, future::Future, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::post,
};
use k8s_openapi::{NamespaceResourceScope, api::authentication::v1::TokenReview};
use kube::{Api, Client, Resource, ResourceExt, runtime::controller};
use serde::de::DeserializeOwned;
use tokio::{sync::Semaphore, task::AbortHandle};

/// Deliveries at a time. The answer to more is 503.
const MAX_DELIVERIES: usize = 1000;

/// What a reconcile asks for. It has the constructors of `kube::runtime::controller::Action`, whose duration cannot be
/// read.
#[derive(Debug, Clone, Copy, Eq, PartialEq)]
pub struct Action(Option<Duration>);

impl Action {
    /// Reconcile again after this time.
    #[must_use]
    pub const fn requeue(after: Duration) -> Self {
        Self(Some(after))
    }

    /// Do nothing until a change.
    #[must_use]
    pub const fn await_change() -> Self {
        Self(None)
    }
}

/// For the resident form.
impl From<Action> for controller::Action {
    fn from(action: Action) -> Self {
        action.0.map_or_else(Self::await_change, Self::requeue)
    }
}

/// Who may send deliveries.
#[derive(Debug, Clone)]
pub struct Sender {
    /// The `sink.audience` of the source.
    pub audience: String,
    /// The account of the source: `system:serviceaccount:NAMESPACE:` and its `status.auth.serviceAccountName`.
    pub account: String,
}

struct Operator<C, R, P> {
    client: Client,
    context: Arc<C>,
    reconcile: R,
    error_policy: P,
    timeout: Duration,
    sender: Option<Sender>,
    permits: Semaphore,
}

/// Returns the routes of an operator. A reconcile that takes longer than `timeout` is dropped, and its delivery is
/// answered with 503. Without a `sender` every delivery is taken.
pub fn router<K, C, E, R, P, F>(
    client: Client,
    context: Arc<C>,
    reconcile: R,
    error_policy: P,
    timeout: Duration,
    sender: Option<Sender>,
) -> Router
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
    C: Send + Sync + 'static,
    E: std::error::Error + Send + 'static,
    F: Future<Output = Result<Action, E>> + Send + 'static,
    R: Fn(Arc<K>, Arc<C>) -> F + Send + Sync + 'static,
    P: Fn(Arc<K>, &E, Arc<C>) -> Action + Send + Sync + 'static,
{
    let permits = Semaphore::new(MAX_DELIVERIES);
    let operator = Arc::new(Operator { client, context, reconcile, error_policy, timeout, sender, permits });
    // GET is for probes. No handler reads a body.
    Router::new().fallback(post(deliver::<K, C, E, R, P, F>).get(async || StatusCode::OK)).with_state(operator)
}

async fn deliver<K, C, E, R, P, F>(State(operator): State<Arc<Operator<C, R, P>>>, headers: HeaderMap) -> Response
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
    C: Send + Sync + 'static,
    E: std::error::Error + Send + 'static,
    F: Future<Output = Result<Action, E>> + Send + 'static,
    R: Fn(Arc<K>, Arc<C>) -> F + Send + Sync + 'static,
    P: Fn(Arc<K>, &E, Arc<C>) -> Action + Send + Sync + 'static,
{
    let Ok(_permit) = operator.permits.try_acquire() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many deliveries at a time").into_response();
    };
    if let Some(sender) = &operator.sender
        && let Err(refusal) = admit(&operator.client, sender, &headers).await
    {
        return refusal;
    }
    let Some((namespace, name)) = headers.get("ce-reschedulekey").and_then(|k| object(&K::kind(&()), k.to_str().ok()?))
    else {
        let said = format!("the attribute reschedulekey must be {}/namespace/name", K::kind(&()));
        return (StatusCode::BAD_REQUEST, said).into_response();
    };
    let run = async {
        match Api::<K>::namespaced(operator.client.clone(), &namespace).get_opt(&name).await {
            Ok(Some(object)) => Ok(Arc::new(object)),
            Ok(None) => Err(again(StatusCode::NO_CONTENT, "never", String::new())),
            Err(e) => Err((StatusCode::SERVICE_UNAVAILABLE, e.to_string()).into_response()),
        }
    };
    let object = match tokio::time::timeout(operator.timeout, run).await {
        Ok(Ok(object)) => object,
        Ok(Err(answer)) => return answer,
        Err(_) => return (StatusCode::SERVICE_UNAVAILABLE, "the API server does not answer").into_response(),
    };
    // A task of its own, so that a panic is an answer. It ends when this function does.
    let task = tokio::spawn((operator.reconcile)(object.clone(), operator.context.clone()));
    let _end = AbortOnDrop(task.abort_handle());
    match tokio::time::timeout(operator.timeout, task).await {
        Ok(Ok(Ok(Action(Some(after))))) => again(StatusCode::NO_CONTENT, &milliseconds(after), String::new()),
        Ok(Ok(Ok(Action(None)))) => StatusCode::NO_CONTENT.into_response(),
        Ok(Ok(Err(e))) => {
            eprintln!("{}: {e}", object.name_any());
            match (operator.error_policy)(object, &e, operator.context.clone()) {
                Action(Some(after)) => again(StatusCode::SERVICE_UNAVAILABLE, &milliseconds(after), e.to_string()),
                Action(None) => (StatusCode::UNPROCESSABLE_ENTITY, e.to_string()).into_response(),
            }
        }
        Ok(Err(e)) => (StatusCode::SERVICE_UNAVAILABLE, e.to_string()).into_response(), // a panic
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, format!("reconcile took longer than {:?}", operator.timeout))
            .into_response(),
    }
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The namespace and the name in a key. Neither has a character that a path must have encoded, as `kube` encodes none.
fn object(kind: &str, key: &str) -> Option<(String, String)> {
    let plain = |s: &str| {
        !matches!(s, "" | "." | "..") && s.chars().all(|c| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@".contains(c))
    };
    let key = decoded(key)?;
    let (namespace, name) = key.strip_prefix(kind)?.strip_prefix('/')?.split_once('/')?;
    (plain(namespace) && plain(name)).then(|| (namespace.to_owned(), name.to_owned()))
}

/// A header value of a CloudEvent without its percent-encoding.
fn decoded(value: &str) -> Option<String> {
    let mut parts = value.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).ok()
}

/// The longest wait that a source takes: 100 years.
const MAX_WAIT: Duration = Duration::from_secs(876_600 * 3600);

/// Rounds up: nothing is early.
fn milliseconds(d: Duration) -> String {
    format!("{}ms", d.min(MAX_WAIT).as_nanos().div_ceil(1_000_000))
}

fn again(status: StatusCode, after: &str, said: String) -> Response {
    (status, [("reschedule-after", after)], said).into_response()
}

/// The API server checks the token, which needs the right to create TokenReviews.
async fn admit(client: &Client, sender: &Sender, headers: &HeaderMap) -> Result<(), Response> {
    let refused = |status: StatusCode, why: &'static str| (status, why).into_response();
    let token = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()?.strip_prefix("Bearer "));
    let Some(token) = token else {
        return Err(refused(StatusCode::UNAUTHORIZED, "the delivery has no token"));
    };
    let mut review = TokenReview::default();
    review.spec.token = token.to_owned();
    review.spec.audiences = Some(vec![sender.audience.clone()]);
    let Ok(review) = Api::<TokenReview>::all(client.clone()).create(&Default::default(), &review).await else {
        return Err(refused(StatusCode::SERVICE_UNAVAILABLE, "the token cannot be checked now"));
    };
    let status = review.status.unwrap_or_default();
    let for_us = status.audiences.is_some_and(|a| a.contains(&sender.audience));
    if status.authenticated != Some(true) || !for_us {
        return Err(refused(StatusCode::UNAUTHORIZED, "the token is forged, expired, or for another audience"));
    }
    if status.user.and_then(|u| u.username).as_deref() != Some(&sender.account) {
        return Err(refused(StatusCode::FORBIDDEN, "the account in the token may not send events to this operator"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_names_an_object_of_the_kind() {
        for (key, name) in [("hello", "hello"), ("system:node", "system:node"), ("system%3Anode", "system:node")] {
            let want = Some(("ops".to_owned(), name.to_owned()));
            assert_eq!(object("Banner", &format!("Banner/ops/{key}")), want, "{key}");
        }
        for key in [
            "Banner//hello",
            "Other/ops/hello",
            "Banner/ops",
            "Banner/ops/../x",
            "Banner/ops/..",
            "Banner/ops/a%2Fb",
            "Banner/ops/a%20b",
            "Banner/ops/a%3",
            "Banner/ops/a%ff",
            "Bannerops/a",
        ] {
            assert_eq!(object("Banner", key), None, "{key}");
        }
    }

    #[test]
    fn waits_are_rounded_up() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), "1ms");
        assert_eq!(milliseconds(Duration::from_secs(300)), "300000ms");
        assert_eq!(milliseconds(Duration::MAX), "3155760000000ms");
    }
}
