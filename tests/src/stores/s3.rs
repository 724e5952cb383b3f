//! An S3 server in this process that keeps its objects in a temporary folder.
//!
//! The library `s3s-fs` first checks whether an object exists, and then renames the new object into
//! its place. If two writers create the same object at the same time, both can therefore succeed. A
//! registry needs a store in which exactly one of them succeeds. So this server handles only one
//! conditional write at a time, and reads the whole body of the request first.
//!
//! The library answers a question about a folder with an error of the server. In a real store there
//! are no folders, so this server answers that there is no such object.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use hyper::body::Incoming;
use hyper::header::IF_NONE_MATCH;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use s3s::Body;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};

use super::{BUCKET, KEY, SECRET};

/// The maximum number of bytes of a request body. The limit exists because the server reads a body
/// into memory before it writes it.
const MOST_BYTES: usize = 64 << 20;

/// A running S3 server. It stops when the value is dropped.
pub(crate) struct S3Server {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The way in which the server treats the condition `If-None-Match: *`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Create {
    Honoured,
    Ignored,
}

impl S3Server {
    pub(crate) fn start(create: Create) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("our own folder");
        let files = s3s_fs::FileSystem::new(folder.path()).expect("a folder that is there");
        let mut builder = S3ServiceBuilder::new(files);
        // A server that ignores the condition removes its header. The signature of a request covers
        // this header, so such a server must not check signatures.
        if create == Create::Honoured {
            builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        }
        let service = builder.build();
        let root = Arc::new(folder.path().to_owned());
        let (end, ended) = oneshot::channel();
        let (to_us, address) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                to_us.send(listener.local_addr().expect("it is bound")).expect("we wait for it");
                tokio::select! {
                    () = accept(listener, service, create, root) => {}
                    _ = ended => {}
                }
            });
        });
        let address = address.recv().expect("the server starts");
        Self { address, folder, end: Some(end), thread: Some(thread) }
    }

    /// Returns the folder in which the objects of the bucket are.
    pub(crate) fn bucket(&self) -> PathBuf {
        self.folder.path().join(BUCKET)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // The panic hook has printed the message.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, service: S3Service, create: Create, root: Arc<PathBuf>) {
    let turn = Arc::new(Mutex::new(()));
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (service, turn, root) = (service.clone(), turn.clone(), root.clone());
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let is_folder = request.method() == Method::HEAD
                    && root.join(request.uri().path().trim_matches('/')).is_dir()
                    && request.uri().path().trim_matches('/').contains('/');
                let (service, turn) = (service.clone(), turn.clone());
                async move {
                    match is_folder {
                        true => Ok(respond(StatusCode::NOT_FOUND)),
                        false => answer(service, turn, create, request).await,
                    }
                }
            });
            // Some connections are cut on purpose, so the error is ignored.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Returns a response without a body.
fn respond(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

async fn answer(
    service: S3Service,
    turn: Arc<Mutex<()>>,
    create: Create,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (mut head, body) = request.into_parts();
    // A body that is cut is not a request, so the server does nothing.
    let Ok(body) = Body::from(body).store_all_limited(MOST_BYTES).await else {
        return Ok(respond(StatusCode::BAD_REQUEST));
    };
    let is_conditional = head.headers.contains_key(IF_NONE_MATCH);
    if create == Create::Ignored {
        head.headers.remove(IF_NONE_MATCH);
    }
    let _turn = if is_conditional { Some(turn.lock().await) } else { None };
    match service.call(Request::from_parts(head, Body::from(body))).await {
        Ok(response) => Ok(response),
        Err(_) => Ok(respond(StatusCode::INTERNAL_SERVER_ERROR)),
    }
}
