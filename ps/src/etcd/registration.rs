//! The registration of a server in etcd under a lease.
//!
//! # Invariants
//! * A server replaces a key only if it has written the key itself, so that of two servers with the
//!   same number one is registered.
//! * The server goes on while etcd is away. It registers again when etcd has returned, and the
//!   number that it drew when it started stays the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tonic::Code;

use super::calls::{CallError, Calls};
use super::directory::{Keys, create_or_read, replace_or_read, run_txn};
use super::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse, LeaseRequest,
    LeaseRevokeResponse,
};
use crate::error::{Result, start_error};
use crate::map::{Member, Upkeep};
use zillion_store::Network;

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// The pause before etcd is asked again.
const PAUSE: Duration = Duration::from_millis(250);

/// The time for which the start of a server waits for etcd.
const START: Duration = Duration::from_secs(60);

/// The time for which the end of a server waits for etcd.
const END: Duration = Duration::from_secs(3);

/// The signs of life of a registered server. When the value is dropped, the server leaves.
struct Registration {
    network: Arc<Network>,
    /// The sender that tells the task to leave. It does so when it is dropped.
    end: Option<oneshot::Sender<()>>,
    /// The receiver that is told when the task has left.
    left: Option<oneshot::Receiver<()>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.end = None;
        if let Some(left) = self.left.take() {
            self.network.wait(async move { tokio::time::timeout(END, left).await });
        }
    }
}

/// Registers a server, and begins its signs of life.
pub(super) fn begin(
    network: &Arc<Network>,
    calls: Arc<Calls>,
    keys: Arc<Keys>,
    member: Member,
) -> Result<Upkeep> {
    let mut registrar = Registrar { calls, keys, member, lease: 0, interval: PAUSE };
    let (registrar, result) = network
        .wait(async move {
            let result = registrar.start().await;
            (registrar, result)
        })
        .ok_or_else(|| start_error("the thread for etcd has ended"))?;
    result?;
    let (end, ended) = oneshot::channel();
    let (leaving, left) = oneshot::channel();
    network.handle().spawn(async move {
        registrar.run(ended).await;
        let _ = leaving.send(());
    });
    let network = network.clone();
    Ok(Upkeep::new(Registration { network, end: Some(end), left: Some(left) }))
}

/// The task that registers the server and keeps its lease.
struct Registrar {
    calls: Arc<Calls>,
    keys: Arc<Keys>,
    member: Member,
    /// The number of the lease; 0 if there is none.
    lease: i64,
    /// The interval of signs of life.
    interval: Duration,
}

/// The end of an attempt to register.
enum Attempt {
    Registered,
    /// Another server has the number.
    Taken(Member),
}

impl Registrar {
    /// Registers the server at its start.
    async fn start(&mut self) -> Result<()> {
        let began = Instant::now();
        let mut taken: Option<Instant> = None;
        let mut is_away = false;
        loop {
            match self.register().await {
                Ok(Attempt::Registered) => {
                    tracing::info!(
                        server = self.member.id,
                        address = self.member.address,
                        "etcd: the server is registered"
                    );
                    return Ok(());
                }
                Ok(Attempt::Taken(other)) => {
                    let since = *taken.get_or_insert_with(Instant::now);
                    // etcd may take a second longer to expire a lease.
                    let seconds = other.lease_seconds.max(self.member.lease_seconds) + 1;
                    if since.elapsed() > Duration::from_secs(seconds) {
                        self.revoke().await;
                        return Err(start_error(format!(
                            "server {} is registered in etcd by another process, which is alive \
                             at {}; stop it, or give this server another number (`ps.id`)",
                            other.id, other.address
                        )));
                    }
                }
                Err(error @ CallError::Refused(..)) => return Err(error.into_error(&self.calls)),
                Err(error) => {
                    let error = error.into_error(&self.calls);
                    if began.elapsed() > START {
                        return Err(error);
                    }
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::warn!("the server waits for etcd: {error}");
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Keeps the lease until `ended`, and then leaves.
    async fn run(mut self, mut ended: oneshot::Receiver<()>) {
        let mut is_away = false;
        let mut pause = self.interval;
        loop {
            tokio::select! {
                _ = &mut ended => break,
                () = tokio::time::sleep(pause) => {}
            }
            let kept = tokio::select! {
                _ = &mut ended => break,
                kept = self.keep() => kept,
            };
            pause = match kept {
                Ok(Attempt::Registered) => {
                    if std::mem::take(&mut is_away) {
                        tracing::info!(
                            server = self.member.id,
                            "etcd: the server is registered again"
                        );
                    }
                    self.interval
                }
                Ok(Attempt::Taken(other)) => {
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::error!(
                            server = self.member.id,
                            "another process is registered in etcd as this server, at {}; stop one \
                             of the two",
                            other.address
                        );
                    }
                    self.interval
                }
                Err(CallError::Changed(problem)) => {
                    tracing::info!(
                        server = self.member.id,
                        "etcd: the server registers again, because {problem}"
                    );
                    PAUSE
                }
                Err(error) => {
                    let error = error.into_error(&self.calls);
                    if !std::mem::replace(&mut is_away, true) {
                        tracing::warn!("the server serves on without etcd: {error}");
                    }
                    PAUSE
                }
            };
        }
        self.leave().await;
    }

    /// Keeps the lease, and registers again if the lease or the key is gone.
    async fn keep(&mut self) -> Result<Attempt, CallError> {
        if self.lease != 0 {
            let request = LeaseRequest { id: self.lease };
            let answer: LeaseKeepAliveResponse = self.calls.exchange(KEEP_ALIVE, request).await?;
            if answer.ttl <= 0 {
                self.lease = 0;
            }
        }
        // The key is looked at too, because someone may have removed it.
        self.register().await
    }

    /// Tries to register once.
    async fn register(&mut self) -> Result<Attempt, CallError> {
        if self.lease == 0 {
            let request = LeaseGrantRequest { ttl: self.member.lease_seconds as i64 };
            let answer: LeaseGrantResponse = self.calls.unary(GRANT, request).await?;
            self.lease = answer.id;
            self.interval = Duration::from_secs(answer.ttl.max(1) as u64) / 3;
        }
        let result = self.put().await;
        if let Err(CallError::Refused(Code::NotFound, _)) = result {
            // The lease has expired while another server had the number, or while etcd was away.
            self.lease = 0;
            return Err(CallError::Changed(format!(
                "the lease of server {} has expired",
                self.member.id
            )));
        }
        if matches!(result, Ok(Attempt::Taken(_))) {
            // The lease must live as long as the attempts go on.
            let request = LeaseRequest { id: self.lease };
            let answer: LeaseKeepAliveResponse = self.calls.exchange(KEEP_ALIVE, request).await?;
            if answer.ttl <= 0 {
                self.lease = 0;
            }
        }
        result
    }

    /// Puts the server into etcd, if no other server has its number.
    async fn put(&self) -> Result<Attempt, CallError> {
        let key = self.keys.server(self.member.id);
        let value = write_member(&self.member);
        let request = create_or_read(&key, &value, self.lease);
        let (succeeded, found) = run_txn(&self.calls, request).await?;
        let Some(found) = found.filter(|_| !succeeded) else { return Ok(Attempt::Registered) };
        if found.value == value && found.lease == self.lease {
            return Ok(Attempt::Registered);
        }
        let other: Member = match serde_json::from_slice(&found.value) {
            Ok(other) => other,
            Err(e) => {
                let text =
                    format!("the key `{key}` is not a server of this version of the program ({e})");
                return Err(CallError::Refused(Code::FailedPrecondition, text));
            }
        };
        // This process listens at its address, so an earlier process with this address is gone.
        if other.boot != self.member.boot && other.address != self.member.address {
            return Ok(Attempt::Taken(other));
        }
        // The earlier process is replaced. Or an answer was lost, or the server registers again
        // while its old lease still lives.
        let request = replace_or_read(&key, &found.value, &value, self.lease);
        match run_txn(&self.calls, request).await? {
            (true, _) => Ok(Attempt::Registered),
            (false, _) => {
                let text = format!("another process has changed the key `{key}`");
                Err(CallError::Changed(text))
            }
        }
    }

    /// Says that the server ends, and ends its lease.
    async fn leave(&mut self) {
        let key = self.keys.server(self.member.id);
        let old = write_member(&self.member);
        let leaving = write_member(&Member { is_leaving: true, ..self.member.clone() });
        let request = replace_or_read(&key, &old, &leaving, self.lease);
        let told = run_txn(&self.calls, request).await;
        self.revoke().await;
        tracing::info!(
            server = self.member.id,
            prefix = self.keys.prefix(),
            is_told = told.is_ok_and(|(succeeded, _)| succeeded),
            "etcd: the server has left"
        );
    }

    /// Ends the lease. If etcd is away, the lease expires by itself.
    async fn revoke(&mut self) {
        if self.lease != 0 {
            let request = LeaseRequest { id: self.lease };
            let ended: Result<LeaseRevokeResponse, _> = self.calls.unary(REVOKE, request).await;
            if let Err(error) = ended {
                let error = error.into_error(&self.calls);
                tracing::warn!("the lease of the server was not ended: {error}");
            }
            self.lease = 0;
        }
    }
}

fn write_member(member: &Member) -> Vec<u8> {
    serde_json::to_vec(member)
        .expect("a server is plain data with text keys, which JSON can always hold")
}
