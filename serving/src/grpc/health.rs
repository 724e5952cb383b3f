//! The health service of gRPC, for the server and for each service. Every status is that of the
//! server, which is `NOT_SERVING` from the moment when a stop is requested.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::SERVICES;
use crate::domain::Domain;

/// The interval between two checks for a client that watches.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The health service of a domain.
#[derive(Clone, Debug)]
pub(super) struct HealthOf(pub(super) Arc<Domain>);

impl HealthOf {
    /// Returns the status of a service, or `None` if the service is unknown. All services have the
    /// status of the server.
    fn find_status(&self, service: &str) -> Option<ServingStatus> {
        if !service.is_empty() && !SERVICES.contains(&service) {
            return None;
        }
        let ready = self.0.is_ready();
        Some(if ready { ServingStatus::Serving } else { ServingStatus::NotServing })
    }
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
        match self.find_status(service) {
            Some(status) => Ok(Response::new(response(status))),
            None => {
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
        let (sender, receiver) = mpsc::channel(1);
        let (health, service) = (self.clone(), request.into_inner().service);
        tokio::spawn(async move {
            let mut sent = None;
            loop {
                // The draining is read before the status, so that the last status is sent before
                // the stream ends.
                let ends = health.0.is_draining();
                let status = health.find_status(&service).unwrap_or(ServingStatus::ServiceUnknown);
                if sent != Some(status) {
                    if sender.send(Ok(response(status))).await.is_err() {
                        return;
                    }
                    sent = Some(status);
                }
                // A client that watches must not keep a server from stopping.
                if ends {
                    return;
                }
                tokio::select! {
                    () = sender.closed() => return,
                    () = tokio::time::sleep(CHECK_INTERVAL) => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
