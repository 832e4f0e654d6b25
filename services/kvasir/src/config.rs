//! The configuration file: one TOML table per crate, unknown keys refused, every key optional.
//!
//! Each crate owns its settings and their defaults; this module only moves values from the file into them. Options of the
//! command line win over the file.

mod cluster;
mod http;
mod reader;
mod routing;
pub(crate) mod show;
mod stores;
mod tables;
mod tenants;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use decode::DecodeConfig;
use gateway::GatewayConfig;
use kvstore::{DiskConfig, HostTierConfig, PeerTransportConfig};
use prefill::PrefillConfig;
use router::RouterConfig;
use serde::Deserialize;
use shared::StartGeometry;

pub use crate::discovery::{DiscoveryBackend, DiscoveryConfig, EtcdConfig, KubernetesConfig};
pub use crate::explain::ExplainConfig;
pub use cluster::{ClusterConfig, MemberConfig};
pub use http::HttpConfig;
pub use stores::{StoreDurability, StoresConfig};
pub use tenants::{TenantLimit, TenantsConfig};

pub use crate::capture::CaptureConfig;
use crate::cli::ArithChoice;
use crate::telemetry::TelemetryConfig;

/// B of the design: the most tokens a sequence is ever rolled back by. Part of the numerics, so no setting.
pub(crate) const ROLLBACK: u32 = 12;

/// Most blocks and window objects of a worker: two thousand million tokens, a million conversations. What a machine
/// really has is compared when the model's layout is known.
const DEVICE_BLOCKS_MAX: u32 = 16_777_216;
const WINDOW_OBJECTS_MAX: u32 = 1_048_576;
/// Most bytes of either part of the store: more host memory than machines have.
const STORE_BYTES_MAX: u64 = 1 << 44;

/// Everything that can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The process itself.
    pub server: ServerConfig,
    /// The members, for roles that are processes of their own.
    pub cluster: ClusterConfig,
    /// The public port.
    pub http: HttpConfig,
    /// The front door.
    pub gateway: GatewayConfig,
    /// Placement; the geometry of the model is filled in when it is known.
    pub router: toml::Table,
    /// The prefill worker.
    pub prefill: PrefillConfig,
    /// The decode worker.
    pub decode: DecodeConfig,
    /// The host tier of the block store.
    pub store: HostTierConfig,
    /// The drive of each store node, whose folder stands at the member, and the object store below it.
    pub disk: DiskConfig,
    /// How objects spread over the store nodes, as workers see them.
    pub stores: StoresConfig,
    /// How much each tenant may keep in a store node.
    pub tenants: TenantsConfig,
    /// Reads between pools, of this process and of others.
    pub transport: PeerTransportConfig,
    /// Traces and log lines by OTLP.
    pub telemetry: TelemetryConfig,
    /// What is told about placements.
    pub explain: ExplainConfig,
    /// Where members are found.
    pub discovery: DiscoveryConfig,
    /// What a router remembers of requests, to be replayed.
    pub capture: CaptureConfig,
}

/// Settings of the process: addresses, engine, sizes of the workers' memories.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address for clients. One that is not loopback needs API keys and TLS, see `[http]`. Default 127.0.0.1:8000.
    pub listen: SocketAddr,
    /// Address for /metrics and /debug. Loopback only. Default 127.0.0.1:8001.
    pub admin: SocketAddr,
    /// Arithmetic of the engine, `exact` or `fast`. Default `fast`: an order of magnitude quicker, within rounding.
    pub arith: ArithChoice,
    /// Blocks of 128 tokens in each worker's memory, 1 to 16,777,216 and what the machine has. Default 2048: 262,144 tokens, 233 MB for Flash. A prompt
    /// that needs more is refused; what is not used by requests is cache.
    pub device_blocks: u32,
    /// Window objects in each worker's host memory, 1 to 1,048,576 and what the machine has. Default 256: three for each of 64 live sequences and some
    /// to keep, 346 MB for Flash.
    pub window_objects: u32,
    /// How long a drain waits for requests in work, in seconds, 0 to 3600. Default 30, the usual grace of a supervisor.
    pub drain_seconds: u64,
    /// How long a worker in another process may tell nothing before the router takes it for stuck and sends its requests
    /// elsewhere, in seconds, 2 to 3600. Default 20. It reports its load every second, but not during a step: with a model
    /// so slow that one step takes longer, raise it. At least twice the workers' `report_interval_ms`.
    pub worker_silence_seconds: u64,
    /// Name that clients use for the model. Default: the name of the model's folder.
    pub model_name: Option<String>,
    /// File with the 64 hexadecimal digits that key all block names, relative to the configuration's folder; it must not be readable by others. Default: none, a
    /// random secret per process, so that names mean nothing to another process.
    pub cluster_secret_file: Option<PathBuf>,
}

impl Default for ServerConfig {
    /// The documented default of every field.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8_000)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 8_001)),
            arith: ArithChoice::Fast,
            device_blocks: 2_048,
            window_objects: 256,
            drain_seconds: 30,
            worker_silence_seconds: 20,
            model_name: None,
            cluster_secret_file: None,
        }
    }
}

impl Default for Config {
    /// Every crate's own defaults.
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            cluster: ClusterConfig::default(),
            http: HttpConfig::default(),
            gateway: GatewayConfig::default(),
            router: toml::Table::new(),
            prefill: PrefillConfig::STANDARD,
            decode: DecodeConfig::STANDARD,
            store: HostTierConfig::DEFAULT,
            disk: DiskConfig::in_folder(PathBuf::new()),
            stores: StoresConfig::default(),
            tenants: TenantsConfig::default(),
            transport: PeerTransportConfig::DEFAULT,
            telemetry: TelemetryConfig::default(),
            explain: ExplainConfig::default(),
            discovery: DiscoveryConfig::default(),
            capture: CaptureConfig::default(),
        }
    }
}

impl Config {
    /// Reads a file. Blocks on the file system.
    ///
    /// # Errors
    /// When it cannot be read, is no TOML, has an unknown key, or a value out of its range; the text names the place.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| {
            format!("{shown} cannot be read; give the path of a configuration file")
        })?;
        let parsed = Self::parse(&text).with_context(|| format!("{shown} is no configuration"));
        let mut config = parsed?;
        config.cluster.resolve(path);
        config.http.resolve(path);
        config.discovery.resolve(path);
        let keys = &mut config.disk.tenant_keys;
        if let (false, Some(folder)) = (keys.as_os_str().is_empty(), path.parent()) {
            *keys = folder.join(&*keys);
        }
        if let (Some(secret), Some(folder)) =
            (&mut config.server.cluster_secret_file, path.parent())
        {
            *secret = folder.join(&*secret);
        }
        let key = &mut config.explain.admin_key_file;
        if let (false, Some(folder)) = (key.as_os_str().is_empty(), path.parent()) {
            *key = folder.join(&*key);
        }
        let credentials = &mut config.disk.object.credentials_file;
        if let (false, Some(folder)) = (credentials.as_os_str().is_empty(), path.parent()) {
            *credentials = folder.join(&*credentials);
        }
        Ok(config)
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// As for [`Config::read`].
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut tables: toml::Table = text.parse().context("it is not TOML")?;
        let mut config = Self::default();
        let mut table = |name: &str| match tables.remove(name) {
            None => Ok(toml::Table::new()),
            Some(toml::Value::Table(table)) => Ok(table),
            Some(_) => bail!("{name} is not a table; write [{name}]"),
        };
        config.server = table("server")?.try_into().context("[server]")?;
        config.cluster = table("cluster")?.try_into().context("[cluster]")?;
        config.http = table("http")?.try_into().context("[http]")?;
        config.gateway = table("gateway")?.try_into().context("[gateway]")?;
        tables::prefill(table("prefill")?, &mut config.prefill)?;
        tables::decode(table("decode")?, &mut config.decode)?;
        tables::store(table("store")?, &mut config.store)?;
        tables::disk(table("disk")?, &mut config.disk)?;
        tables::object_store(table("object_store")?, &mut config.disk.object)?;
        config.stores = table("stores")?.try_into().context("[stores]")?;
        config.prefill.durability = config.stores.durability.into();
        config.decode.durability = config.stores.durability.into();
        config.tenants = table("tenants")?.try_into().context("[tenants]")?;
        tables::transport(table("transport")?, &mut config.transport)?;
        config.telemetry = table("telemetry")?.try_into().context("[telemetry]")?;
        config.explain = table("explain")?.try_into().context("[explain]")?;
        config.discovery = table("discovery")?.try_into().context("[discovery]")?;
        config.capture = table("capture")?.try_into().context("[capture]")?;
        config.router = table("router")?;
        if let Some(name) = tables.keys().next() {
            bail!(
                "[{name}] is unknown; tables are server, cluster, http, gateway, router, prefill, decode, store, disk, object_store, stores, tenants, transport, telemetry, explain, discovery, capture"
            );
        }
        config.check()?;
        Ok(config)
    }

    /// Tables that say something `kvasir serve` has no use for: it keeps blocks in memory and has no other members.
    #[must_use]
    pub fn unused_by_serve(&self) -> Vec<&'static str> {
        let defaults = Self::default();
        let object = self.disk.object != defaults.disk.object;
        let disk = DiskConfig { object: defaults.disk.object.clone(), ..self.disk.clone() }
            != defaults.disk;
        let stores = self.stores != defaults.stores;
        let found = [
            ("[disk]", disk),
            ("[object_store]", object),
            ("[stores]", stores),
            ("[discovery]", self.discovery != defaults.discovery),
            ("[capture]", self.capture != defaults.capture),
            ("[[cluster.member]]", !self.cluster.member.is_empty()),
        ];
        found.into_iter().filter_map(|(table, is_set)| is_set.then_some(table)).collect()
    }

    /// The router's settings for a model of this geometry.
    ///
    /// # Errors
    /// When a key is unknown or a value out of its range.
    pub fn router(&self, geometry: StartGeometry) -> anyhow::Result<RouterConfig> {
        let mut config = RouterConfig::with_defaults(geometry);
        tables::router(self.router.clone(), &mut config)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the file and the command line together say.
    ///
    /// # Errors
    /// The first setting out of its range.
    pub fn check(&self) -> anyhow::Result<()> {
        let server = &self.server;
        self.check_addresses()?;
        let ranges = [
            (
                "server.device_blocks",
                (1..=DEVICE_BLOCKS_MAX).contains(&server.device_blocks),
                "1..=16777216",
            ),
            (
                "server.window_objects",
                (1..=WINDOW_OBJECTS_MAX).contains(&server.window_objects),
                "1..=1048576",
            ),
            ("server.drain_seconds", server.drain_seconds <= 3_600, "0..=3600"),
            (
                "server.worker_silence_seconds",
                (2..=3_600).contains(&server.worker_silence_seconds),
                "2..=3600",
            ),
            (
                "store.block_bytes_max",
                self.store.block_bytes_max <= STORE_BYTES_MAX,
                "at most 2^44",
            ),
            (
                "store.window_bytes_max",
                self.store.window_bytes_max <= STORE_BYTES_MAX,
                "at most 2^44",
            ),
        ];
        for (field, holds, expected) in ranges {
            if !holds {
                bail!("{field} is out of range: expected {expected}");
            }
        }
        if let Some((field, range)) = self.gateway.out_of_range() {
            bail!("gateway.{field} is out of range: expected {range}");
        }
        self.store.check().context("[store]")?;
        // Any size of block shows wrong values; the model's own comes later.
        self.disk.check(1).context("[disk]")?;
        self.stores.check()?;
        self.tenants.check()?;
        self.transport.check().context("[transport]")?;
        self.cluster.check()?;
        self.telemetry.check()?;
        self.explain.check()?;
        self.discovery.check()?;
        self.capture.check()?;
        self.prefill.check()?;
        self.decode.check()?;
        // Any geometry shows unknown keys and wrong values; the model's own comes later.
        let geometry = StartGeometry { window: 128, rollback: ROLLBACK, encoder_layers: 1 };
        self.check_reports(&self.router(geometry)?)
    }
}

impl Config {
    /// Workers report oftener than routers miss them: an idle one tells nothing else, and what it is asked for comes with a report.
    fn check_reports(&self, router: &RouterConfig) -> anyhow::Result<()> {
        let silence = self.server.worker_silence_seconds;
        let stale = router.loads.report_stale;
        let asking = router.resync.retry.saturating_mul(router.resync.attempts_max);
        let workers = [
            ("decode", self.decode.report_interval_ms),
            ("prefill", self.prefill.report_interval_ms),
        ];
        for (worker, interval_ms) in workers {
            let interval = Duration::from_millis(interval_ms);
            let field = format!("{worker}.report_interval_ms is {interval_ms}");
            ensure!(
                2 * interval <= Duration::from_secs(silence),
                "{field}, more than half of server.worker_silence_seconds, which is {silence}: idle workers would count as stuck"
            );
            ensure!(
                interval < stale,
                "{field}, not less than router.loads.report_stale_ms, which is {}: loads would not count",
                stale.as_millis()
            );
            ensure!(
                interval < asking,
                "{field}, not less than router.resync.retry_ms times attempts_max, which is {}: answers would come too late",
                asking.as_millis()
            );
        }
        Ok(())
    }

    /// Operators are met on loopback only; clients elsewhere too, with keys and TLS.
    fn check_addresses(&self) -> anyhow::Result<()> {
        let Self { server, cluster, http, .. } = self;
        http.check()?;
        let admin = server.admin;
        if !admin.ip().is_loopback() {
            bail!(
                "admin is {admin}, but operators are asked for no key; use a loopback address such as 127.0.0.1:{} and a \
                 tunnel to it",
                admin.port()
            );
        }
        http.check_public("listen", server.listen)?;
        for member in &cluster.member {
            if let Some(listen) = member.listen {
                http.check_public(&format!("listen of {}", member.name), listen)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Config, ServerConfig};
    use crate::cli::ArithChoice;

    #[test]
    fn the_example_file_shows_every_default() {
        let example = Path::new("../../deploy/kvasir.example.toml");
        let parsed = Config::read(example).unwrap();
        let router = parsed.router.clone();
        assert_eq!(Config { router: toml::Table::new(), ..parsed.clone() }, Config::default());
        let geometry = shared::StartGeometry { window: 128, rollback: 12, encoder_layers: 1 };
        let defaults = Config::default().router(geometry).unwrap();
        assert_eq!(parsed.router(geometry).unwrap(), defaults);
        assert!(!router.is_empty(), "the example shows the router's settings");
    }

    #[test]
    fn nothing_need_be_set() {
        assert_eq!(Config::parse("").unwrap(), Config::default());
    }

    #[test]
    fn what_serve_has_no_use_for_is_named() {
        for (text, unused) in [
            ("[store]\nwindow_ttl_s = 60\n[disk]\n", vec![]),
            ("[disk]\nretention_s = 7200\n", vec!["[disk]"]),
            (
                "[capture]\nbytes_max = 4096\n[stores]\nreplicas_max = 3\n",
                vec!["[stores]", "[capture]"],
            ),
        ] {
            assert_eq!(Config::parse(text).unwrap().unused_by_serve(), unused, "{text}");
        }
    }

    #[test]
    fn values_reach_the_crate_that_owns_them() {
        let text = "[server]\narith = \"exact\"\ndevice_blocks = 7\n[prefill]\nstep_rows_max = 256\n\
                    [decode]\nreplay_rows = 512\n[store]\nwindow_ttl_s = 60\n[router.admission]\nwaiting_max = 3\n\
                    [gateway]\nretry_after_s = 9\n";
        let config = Config::parse(text).unwrap();
        let server =
            ServerConfig { arith: ArithChoice::Exact, device_blocks: 7, ..Default::default() };
        assert_eq!(config.server, server);
        assert_eq!(config.prefill.step_rows_max, 256);
        assert_eq!(config.decode.replay_rows, Some(512));
        assert_eq!(config.store.window_ttl.as_secs(), 60);
        assert_eq!(config.gateway.retry_after_s, 9);
        let durable = Config::parse("[stores]\ndurability = \"disk\"\n").unwrap();
        let workers = [durable.prefill.durability, durable.decode.durability];
        assert_eq!(workers, [shared::Durability::Disk; 2]);
        let geometry = shared::StartGeometry { window: 128, rollback: 12, encoder_layers: 5 };
        assert_eq!(config.router(geometry).unwrap().admission.waiting_max, 3);
    }

    #[test]
    fn faults_are_named_with_their_table() {
        let cases = [
            ("[servers]\n", "[servers]"),
            ("server = 3\n", "[server]"),
            ("[server]\nlisten_on = 3\n", "listen_on"),
            ("[server]\nlisten = \"0.0.0.0:80\"\n", "loopback"),
            ("[server]\ndevice_blocks = 0\n", "server.device_blocks"),
            ("[server]\ndevice_blocks = 4294967295\n", "server.device_blocks"),
            ("[server]\nwindow_objects = 4294967295\n", "server.window_objects"),
            ("[store]\nblock_bytes_max = 9223372036854775807\n", "store.block_bytes_max"),
            ("[store]\nwindow_bytes_max = 9223372036854775807\n", "store.window_bytes_max"),
            ("[gateway]\nbody_byte_max = 3\n", "body_byte_max"),
            ("[prefill]\nstep_rows = 3\n", "prefill.step_rows"),
            ("[prefill]\nstep_rows_max = 3\n", "prefill.step_rows_max"),
            ("[prefill]\nstep_rows_max = \"x\"\n", "prefill.step_rows_max"),
            ("[decode]\nwaiting_max = -1\n", "decode.waiting_max"),
            ("[store]\nttl = 1\n", "store.ttl"),
            ("[store]\nbatch_max = 0\n", "batch_max"),
            ("[disk]\nreaders = 0\n", "readers"),
            ("[object_store]\nurl = \"cache\"\n", "s3://bucket/prefix"),
            ("[object_store]\nurl = \"s3://a\"\ngets_max = 0\n", "gets_max"),
            ("[object_store]\nsecret = 1\n", "object_store.secret"),
            ("[stores]\nreplicas_max = 4\n", "stores.replicas_max"),
            ("[stores]\nhot_window_s = 0\n", "stores.hot_window_s"),
            ("[stores]\nreplicas = 2\n", "replicas"),
            ("[stores]\ndurability = \"tape\"\n", "durability"),
            ("[gateway]\nkeep_alive_ms = 0\n", "gateway.keep_alive_ms"),
            ("[transport]\nrun_max = 0\n", "run_max"),
            ("[transport]\nqueue_max = 0\n", "transport.queue_max"),
            ("[telemetry]\nsample_ratio = 1.5\n", "telemetry.sample_ratio"),
            ("[telemetry]\nsample_ratio = nan\n", "telemetry.sample_ratio"),
            ("[explain]\nprediction_starts = 0\n", "explain.prediction_starts"),
            ("[explain]\nheader = true\n", "header"),
            ("[discovery]\nbackend = \"consul\"\n", "consul"),
            ("[discovery.etcd]\nlease_s = 0\n", "discovery.etcd.lease_s"),
            ("[telemetry]\nqueue_max = 0\n", "telemetry.queue_max"),
            ("[telemetry]\nexport_ms = 0\n", "telemetry.export_ms"),
            ("[telemetry]\notlp_endpoint = \"127.0.0.1:4317\"\n", "http://HOST:PORT"),
            ("[telemetry]\notlp_endpoint = \"https://a:4317\"\n", "telemetry.otlp_endpoint"),
            (
                "[telemetry]\notlp_endpoint = \"http://a:4318/v1/traces\"\n",
                "telemetry.otlp_endpoint",
            ),
            ("[capture]\nbytes_max = 9000000000\n", "capture.bytes_max"),
            ("[telemetry]\nendpoint = \"http://a:4317\"\n", "endpoint"),
            ("[router]\nseeds = 1\n", "router.seeds"),
            ("[router.cost]\nhandoff = 1\n", "router.cost.handoff"),
            ("[router.admission]\ndecode_running_max = 0\n", "decode_running_max"),
            ("[decode]\nreport_interval_ms = 10001\n", "server.worker_silence_seconds"),
            (
                "[server]\nworker_silence_seconds = 2\n[prefill]\nreport_interval_ms = 1001\n",
                "prefill",
            ),
            ("[decode]\nreport_interval_ms = 5000\n", "router.loads.report_stale_ms"),
            ("[router.loads]\nreport_stale_ms = 1000\n", "decode.report_interval_ms"),
            ("[router.resync]\nretry_ms = 200\n", "router.resync.retry_ms"),
            ("a = \n", "TOML"),
        ];
        for (text, expected) in cases {
            let error = format!("{:#}", Config::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
