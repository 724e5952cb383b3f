//! The health service of gRPC, for the server and for each service. Every status is that of the
//! server, which is `NOT_SERVING` from the moment when a stop is requested.
//!
//! Every caller may watch, without a proof of identity. So a watch costs little: one look at the
//! models serves all streams, a connection has few of them, and they do not keep it from idling.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{mpsc, watch};
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::SERVICES;
use crate::domain::Domain;
use crate::network::Peer;

/// The largest number of streams of a connection that watch.
const MOST_WATCHES: usize = 16;

/// The state of a server that clients watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readiness {
    is_ready: bool,
    is_draining: bool,
}

impl Readiness {
    /// Returns the present state.
    pub(crate) fn of(domain: &Domain) -> Self {
        // The draining is read first, so that a server that is stopping is never ready.
        let is_draining = domain.is_draining();
        Self { is_draining, is_ready: domain.is_ready() && !is_draining }
    }

    fn status(self) -> ServingStatus {
        if self.is_ready { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

/// The health service of a domain. All services have the status of the server.
#[derive(Clone, Debug)]
pub(super) struct HealthOf {
    pub(super) domain: Arc<Domain>,
    pub(super) readiness: watch::Receiver<Readiness>,
}

/// A stream that watches, which counts in its connection until the value is dropped.
#[derive(Debug)]
struct OneWatch(Arc<AtomicUsize>);

impl OneWatch {
    /// Counts a stream, or returns `None` if the connection has too many of them.
    fn begin(watches: &Arc<AtomicUsize>) -> Option<Self> {
        let before = watches.fetch_add(1, Ordering::Relaxed);
        let watch = Self(watches.clone());
        (before < MOST_WATCHES).then_some(watch)
    }
}

impl Drop for OneWatch {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn is_known(service: &str) -> bool {
    service.is_empty() || SERVICES.contains(&service)
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[async_trait]
impl Health for HealthOf {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        match is_known(service) {
            true => Ok(Response::new(response(Readiness::of(&self.domain).status()))),
            false => {
                let service: String = service.chars().take(100).collect();
                let services = SERVICES.join("`, `");
                Err(Status::not_found(format!(
                    "unknown service `{service}`; expected one of `{services}`, or an empty name for all of them"
                )))
            }
        }
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let unguarded = || Status::internal("a call came without its peer");
        let peer = request.extensions().get::<Arc<Peer>>().ok_or_else(unguarded)?;
        let watch = OneWatch::begin(&peer.watches).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "the connection watches {MOST_WATCHES} times already; a stream for each service is \
                 enough"
            ))
        })?;
        let is_known = is_known(&request.get_ref().service);
        let (sender, receiver) = mpsc::channel(1);
        let mut readiness = self.readiness.clone();
        tokio::spawn(async move {
            let _watch = watch;
            let mut sent = None;
            loop {
                let now = *readiness.borrow_and_update();
                let status = match is_known {
                    true => now.status(),
                    false => ServingStatus::ServiceUnknown,
                };
                if sent != Some(status) {
                    if sender.send(Ok(response(status))).await.is_err() {
                        return;
                    }
                    sent = Some(status);
                }
                // A client that watches must not keep a server from stopping.
                if now.is_draining {
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    changed = readiness.changed() => if changed.is_err() { return },
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_has_few_watches() {
        let watches = Arc::new(AtomicUsize::new(0));
        let mut open: Vec<_> = (0..MOST_WATCHES).map(|_| OneWatch::begin(&watches)).collect();
        assert!(open.iter().all(Option::is_some) && OneWatch::begin(&watches).is_none());
        open.pop();
        assert!(OneWatch::begin(&watches).is_some(), "a place that is free again is taken");
        drop(open);
        assert_eq!(watches.load(Ordering::Relaxed), 0);
    }
}
