//! Clients of object stores, from the settings. Nothing is sent before the first request.
//!
//! They speak HTTP through our own hyper and rustls, TLS 1.3 alone: what `object_store` would bring along is a second stack,
//! which wants a crypto provider for the whole process.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector as Connector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use super::config::{Credentials, Kind, ObjectConfig, ObjectError, Place};

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// Connections that wait for their next request.
const IDLE_MAX: usize = 16;
/// How long they wait.
const IDLE_TIME: Duration = Duration::from_secs(30);

/// Makes a client. A mounted folder that is not there is an error, so that it is tried again.
pub(crate) type Connect =
    Arc<dyn Fn() -> Result<Arc<dyn ObjectStore>, ObjectError> + Send + Sync + 'static>;

/// What makes clients of the configured store; reads the credentials. Blocks.
pub(super) fn connect(config: &ObjectConfig) -> Result<Connect, ObjectError> {
    let place = Place::parse(&config.url)?;
    let credentials = Credentials::read(&config.credentials_file, place.kind)?;
    let config = config.clone();
    if place.kind == Kind::Folder {
        return Ok(Arc::new(move || folder(&place)));
    }
    let http = Http::new(config.allow_http)?;
    let make: Connect = Arc::new(move || client(&config, &place, &credentials, &http));
    // What the settings contradict is told at the start.
    make().map(|_| Arc::clone(&make))
}

/// What was written is durable when that is said, as in the clouds.
fn folder(place: &Place) -> Result<Arc<dyn ObjectStore>, ObjectError> {
    Ok(Arc::new(LocalFileSystem::new_with_prefix(&place.bucket)?.with_fsync(true)))
}

fn client(
    config: &ObjectConfig,
    place: &Place,
    credentials: &Credentials,
    http: &Http,
) -> Result<Arc<dyn ObjectStore>, ObjectError> {
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
            base: 2.0,
        },
        max_retries: config.retries_max,
        retry_timeout: Duration::from_secs(30),
    };
    let options = ClientOptions::new().with_allow_http(config.allow_http);
    let Credentials { id, secret, token } = credentials;
    let endpoint = (!config.endpoint.is_empty()).then_some(&config.endpoint);
    Ok(match place.kind {
        Kind::S3 => {
            let mut builder = AmazonS3Builder::new()
                .with_bucket_name(&place.bucket)
                .with_region(&config.region)
                .with_client_options(options)
                .with_retry(retry)
                .with_http_connector(http.clone());
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint);
            }
            if !secret.is_empty() {
                builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            }
            if !token.is_empty() {
                builder = builder.with_token(token);
            }
            Arc::new(builder.build()?)
        }
        Kind::Google => {
            let mut builder = GoogleCloudStorageBuilder::new()
                .with_bucket_name(&place.bucket)
                .with_client_options(options)
                .with_retry(retry)
                .with_http_connector(http.clone());
            if let Some(endpoint) = endpoint {
                builder = builder.with_base_url(endpoint);
            }
            if !secret.is_empty() {
                builder = builder.with_service_account_key(secret);
            }
            Arc::new(builder.build()?)
        }
        Kind::Azure => {
            let mut builder = MicrosoftAzureBuilder::new()
                .with_container_name(&place.bucket)
                .with_account(id)
                .with_access_key(secret)
                .with_client_options(options)
                .with_retry(retry)
                .with_http_connector(http.clone());
            if let Some(endpoint) = endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            Arc::new(builder.build()?)
        }
        Kind::Folder => folder(place)?,
    })
}

/// HTTP/1.1 with and without TLS. A cheap handle of one pool of connections.
#[derive(Clone, Debug)]
struct Http {
    client: Client<HttpsConnector<HttpConnector>, HttpRequestBody>,
}

impl Http {
    fn new(allow_http: bool) -> Result<Self, ObjectError> {
        let failed = |what| {
            move |source: Box<dyn Error + Send + Sync>| ObjectError::System {
                what,
                source: io::Error::other(source),
            }
        };
        let mut roots = RootCertStore::empty();
        // Some of the system's may be unreadable; without any, every server is refused when it is connected.
        let _counts =
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed("set up TLS")(Box::new(error)))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_MAX));
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls);
        let builder = if allow_http { builder.https_or_http() } else { builder.https_only() };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_max_idle_per_host(IDLE_MAX)
            .build(builder.enable_http1().wrap_connector(tcp));
        Ok(Self { client })
    }
}

impl Connector for Http {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Http {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.client.request(request).await.map_err(|error| {
            let kind =
                if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Request };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = response.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}
