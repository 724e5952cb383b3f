//! The beginning of a connection: the TLS handshake, and the choice between the frames of trainers
//! and the administration over gRPC, which share one address.

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::admin;
use super::connection::{self, Shared};
use super::tls::ServerTls;
use crate::wire::{MAGIC, WireError};

/// The time of a TLS handshake. A handshake that takes longer ends its connection.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// The time for which the rest of a refused client's bytes are read, so that the client can read
/// why it is refused. A connection that is closed with unread bytes loses what it was sent.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// The largest number of these bytes.
const LINGER_BYTES: u64 = 64 << 10;

/// Serves a connection to its end. Connections are numbered in the order in which they were
/// accepted.
pub(super) async fn serve(stream: TcpStream, peer: SocketAddr, number: u64, shared: Arc<Shared>) {
    shared.figures.connections.fetch_add(1, Ordering::Relaxed);
    let _ = stream.set_nodelay(true);
    match &shared.tls {
        None => {
            let (input, output) = stream.into_split();
            choose(input, output, (peer, number), &shared).await;
        }
        Some(tls) => {
            if let Some(stream) = shake_hands(stream, peer, tls, &shared).await {
                let (input, output) = tokio::io::split(stream);
                choose(input, output, (peer, number), &shared).await;
            }
        }
    }
    shared.figures.connections.fetch_sub(1, Ordering::Relaxed);
}

/// Looks at the first bytes of a connection, and serves it by the protocol that they begin.
async fn choose(
    mut input: impl AsyncRead + Unpin + Send + 'static,
    output: impl AsyncWrite + Unpin + Send + 'static,
    (peer, number): (SocketAddr, u64),
    shared: &Arc<Shared>,
) {
    let mut first = [0; MAGIC.len()];
    if input.read_exact(&mut first).await.is_err() {
        return;
    }
    let input = AsyncReadExt::chain(Cursor::new(first), input);
    match first == admin::FIRST_BYTES {
        true => admin::serve(tokio::io::join(input, output), shared).await,
        false => connection::serve(input, output, (peer, number), shared).await,
    }
}

/// Makes the TLS handshake. Returns `None` if the client was refused.
async fn shake_hands(
    mut stream: TcpStream,
    peer: SocketAddr,
    tls: &ServerTls,
    shared: &Shared,
) -> Option<TlsStream<TcpStream>> {
    let shaken = timeout(HANDSHAKE_TIME, async {
        let mut first = [0; 1];
        match stream.peek(&mut first).await {
            // A probe opens a connection and closes it.
            Ok(0) => return Err((None, stream)),
            Ok(_) => {}
            Err(error) => return Err((Some(error.to_string()), stream)),
        }
        if first[0] == MAGIC[0] {
            let text = "the server takes only connections over TLS; give the client the \
                        authority of the server's certificate (`ps.tls_ca`)";
            let refusal = connection::refusal(&WireError::new(text));
            let _ = stream.write_all(refusal.as_bytes()).await;
            let problem = "the client does not speak TLS; set `ps.tls_ca` for it";
            return Err((Some(problem.to_owned()), stream));
        }
        let accepted = TlsAcceptor::from(tls.config()).accept(stream).into_fallible().await;
        accepted.map_err(|(error, stream)| (Some(error.to_string()), stream))
    });
    let (problem, stream) = match shaken.await {
        Ok(Ok(stream)) => return Some(stream),
        Ok(Err((None, _))) => return None,
        Ok(Err((Some(problem), stream))) => (problem, Some(stream)),
        Err(_) => (format!("the handshake took more than {} s", HANDSHAKE_TIME.as_secs()), None),
    };
    shared.figures.refused_connections.fetch_add(1, Ordering::Relaxed);
    tracing::warn!(%peer, "a connection over TLS is refused: {problem}");
    if let Some(mut stream) = stream {
        linger(&mut stream).await;
    }
    None
}

/// Ends the sending side of a connection, and reads what its client still sends.
async fn linger(stream: &mut TcpStream) {
    let _ = stream.shutdown().await;
    let mut rest = AsyncReadExt::take(stream, LINGER_BYTES);
    let _ = timeout(LINGER_TIME, tokio::io::copy(&mut rest, &mut tokio::io::sink())).await;
}
