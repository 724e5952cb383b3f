//! The bytes of a connection, plain or over TLS, with a record of their progress.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::activity::Activity;

/// The transport of a connection.
#[derive(Debug)]
pub(crate) enum Transport {
    /// Bytes as they are.
    Plain(TcpStream),
    /// Bytes over TLS, after the handshake.
    Tls(Box<TlsStream<TcpStream>>),
}

/// A transport that records its progress.
#[derive(Debug)]
pub(crate) struct Watched {
    transport: Transport,
    activity: Arc<Activity>,
}

impl Watched {
    /// Creates a transport that records its progress in `activity`.
    pub(crate) fn new(transport: Transport, activity: Arc<Activity>) -> Self {
        Self { transport, activity }
    }

    fn record(&self, written: &Poll<io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(bytes)) => self.activity.record_written(*bytes),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.record_blocked(),
        }
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_read(context, buffer),
        };
        self.activity.record_read(&buffer.filled()[before..]);
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write(context, bytes),
        };
        self.record(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_write_vectored(context, bytes),
        };
        self.record(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_flush(context),
        };
        match flushed {
            Poll::Ready(Ok(())) => self.activity.record_flushed(),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.activity.record_blocked(),
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
        }
    }
}
