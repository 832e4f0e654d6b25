//! A real S3 server over a folder, in this process, spoken to over HTTP: `s3s` with its file system. It checks signatures,
//! takes uploads in parts and answers ranges.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::ObjectConfig;

const BUCKET: &str = "cache";
const KEY: &str = "test-key";
const SECRET: &str = "test-secret";

/// The server, until it is dropped.
pub(super) struct Server {
    endpoint: String,
    credentials: PathBuf,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves a folder on a free port.
    pub(super) fn start(folder: &Path) -> Self {
        fs::create_dir(folder.join(BUCKET)).unwrap();
        let credentials = folder.join("credentials");
        let text = format!("access_key_id = \"{KEY}\"\nsecret_access_key = \"{SECRET}\"\n");
        fs::write(&credentials, text).unwrap();
        fs::set_permissions(&credentials, Permissions::from_mode(0o600)).unwrap();
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder).unwrap());
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let (told, port) = mpsc::channel();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                told.send(listener.local_addr().unwrap().port()).unwrap();
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = serve(listener, service) => {}
                }
            });
        });
        let endpoint = format!("http://127.0.0.1:{}", port.recv().unwrap());
        Self { endpoint, credentials, stop, thread: Some(thread) }
    }

    pub(super) fn config(&self) -> ObjectConfig {
        ObjectConfig {
            url: format!("s3://{BUCKET}/kv"),
            endpoint: self.endpoint.clone(),
            allow_http: true,
            credentials_file: self.credentials.clone(),
            ..ObjectConfig::default()
        }
    }
}

impl Drop for Server {
    /// Closes all connections.
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

async fn serve(listener: TcpListener, service: S3Service) {
    let mut connections = JoinSet::new();
    while let Ok((socket, _)) = listener.accept().await {
        let service = service.clone();
        connections.spawn(async move {
            // A client that goes away is no fault.
            let _ignored =
                http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
        });
    }
}
