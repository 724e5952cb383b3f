//! The accepting of connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::connection::Shared;
use super::door;
use super::figures::Figures;
use super::options::ServerOptions;
use super::request::Command;
use super::tls::ServerTls;

/// The pause after an error of the listener, for example because no file descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// The interval between two looks of the engine at silent trainers.
const TICK: Duration = Duration::from_millis(250);

/// Accepts connections until the server stops.
pub(super) async fn serve(
    listener: std::net::TcpListener,
    (options, tls): (ServerOptions, Option<ServerTls>),
    commands: mpsc::Sender<Command>,
    figures: Arc<Figures>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(e) => {
            tracing::error!("the listener cannot be used: {e}");
            return;
        }
    };
    let shared = Arc::new(Shared {
        pool: figures.pool.clone(),
        options,
        tls,
        commands: commands.clone(),
        figures: figures.clone(),
    });
    let ticking = tick(commands, shared.options.lease.min(4 * TICK) / 4);
    tokio::select! {
        () = figures.stopped() => {}
        () = accept(&listener, &shared) => {}
        () = ticking => {}
    }
}

async fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let figures = &shared.figures;
                let open = figures.connections.load(Ordering::Relaxed);
                if open >= shared.options.max_connections as u64 {
                    figures.refused_connections.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                let before = figures.accepted.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(door::serve(stream, peer, before + 1, shared.clone()));
            }
            Err(e) => {
                tracing::warn!("a connection cannot be accepted: {e}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Sends the engine a tick now and then.
async fn tick(commands: mpsc::Sender<Command>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // An engine that has no room for a tick is at work.
        if let Err(mpsc::error::TrySendError::Closed(_)) = commands.try_send(Command::Tick) {
            return;
        }
    }
}
