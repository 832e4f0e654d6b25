//! The manifests of `deploy/kubernetes` against what discovery and the configuration expect.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, from_slice, from_value, json};
use tempfile::TempDir;

use super::slices::{Slices, id};
use crate::config::{Config, MemberConfig};
use crate::discovery::{DiscoveryBackend, KubernetesConfig};
use crate::identity::{Identity, IdentityFiles, MemberRole};

const ROLES: [&str; 4] = ["kvstore", "prefill", "decode", "router"];
const ADDRESS: &str = "10.1.0.9";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes")
}

/// The objects of one file.
fn objects(file: &str) -> Vec<Value> {
    let bytes = fs::read(folder().join(file)).unwrap();
    let list: Value = from_slice(&bytes).unwrap();
    assert_eq!((&list["apiVersion"], &list["kind"]), (&json!("v1"), &json!("List")), "{file}");
    list["items"].as_array().unwrap().clone()
}

/// What `start.sh` makes of what a pod finds mounted, in front of a program that only says how it was called.
struct Started {
    run: TempDir,
    /// What the program was called with.
    arguments: String,
}

impl Started {
    fn of(pod: &str) -> Self {
        let run = tempfile::tempdir().unwrap();
        let mounts = tempfile::tempdir().unwrap();
        let at = |name: &str| mounts.path().join(name);
        for name in ["ca.pem", "cluster", &format!("{pod}.pem"), &format!("{pod}.key")] {
            fs::write(at(name), name).unwrap();
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o440)).unwrap();
        }
        fs::write(at("kvasir"), "#!/bin/sh\necho \"$@\"\n").unwrap();
        fs::set_permissions(at("kvasir"), fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", mounts.path().display());
        let output = Command::new("/bin/sh")
            .arg(folder().join("config/start.sh"))
            .env_clear()
            .envs([("PATH", path.as_str()), ("POD_NAME", pod), ("POD_IP", ADDRESS)])
            .env("RUN", run.path())
            .env("CONFIG", folder().join("config"))
            .env("TLS", mounts.path())
            .env("SECRET", at("cluster"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { run, arguments: String::from_utf8(output.stdout).unwrap() }
    }

    fn config(&self) -> Config {
        Config::read(&self.run.path().join("kvasir.toml")).unwrap()
    }
}

/// The entry of a pod, as routers make it from the slice that the API server makes of a service.
fn entry(service: &Value, pod: &str) -> MemberConfig {
    let slice = json!({
        "metadata": {"name": "a-slice", "labels": service["metadata"]["labels"]},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [ADDRESS], "targetRef": {"name": pod}}],
        "ports": service["spec"]["ports"],
    });
    let mut slices = Slices::new(&KubernetesConfig::default().role_label);
    slices.insert(from_value(slice).unwrap());
    let mut entries = slices.entries();
    assert_eq!(entries.len(), 1);
    entries.remove(pod).unwrap().unwrap()
}

#[test]
fn pods_are_the_members_that_routers_take_them_for() {
    for role in ROLES {
        let [service, set] = &objects(&format!("{role}.json"))[..] else {
            panic!("{role}.json is a service and its pods")
        };
        let pod = format!("{role}-3");
        let started = Started::of(&pod);
        let words = [role, "--config", "kvasir.toml", &format!("--name {pod}")];
        assert!(words.iter().all(|word| started.arguments.contains(word)), "{}", started.arguments);
        let config = started.config();
        let known = MemberRole::parse(role).unwrap();
        let me = config.cluster.myself(known, Some(&pod)).unwrap();
        let seen = entry(service, &pod);
        assert_eq!((&me.name, &me.role, me.id), (&seen.name, &seen.role, seen.id));
        assert_eq!((me.control, me.data), (seen.control, seen.data), "{role}");
        assert_eq!(id(known, &pod, 0), Ok(me.id));
        assert_eq!(config.discovery.backend, DiscoveryBackend::Kubernetes);
        assert_eq!(me.disk.is_some(), role == "kvstore");
        assert_eq!(me.listen.is_some(), role == "router");
        let secret = config.server.cluster_secret_file.unwrap();
        let tls = config.cluster.tls.unwrap();
        for file in [secret, tls.join(format!("{pod}.key"))] {
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", file.display());
        }
        let grace = set["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].as_u64();
        assert!(Some(config.server.drain_seconds) < grace, "{role}: {grace:?}");
    }
}

/// The first value under this key, however deep.
fn find<'a>(value: &'a Value, key: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            fields.get(key).or_else(|| fields.values().find_map(|inner| find(inner, key)))
        }
        Value::Array(items) => items.iter().find_map(|inner| find(inner, key)),
        _ => None,
    }
}

#[test]
fn the_parts_of_a_manifest_fit_together() {
    let selector = KubernetesConfig::default().selector;
    let (key, value) = selector.split_once('=').unwrap();
    for role in ROLES {
        let [service, set] = &objects(&format!("{role}.json"))[..] else { panic!("{role}") };
        for object in [service, set] {
            assert_eq!(object["metadata"]["name"], role);
            assert_eq!(object["metadata"]["labels"][key], value);
        }
        assert_eq!(set["spec"]["serviceName"], role);
        assert_eq!(service["spec"]["clusterIP"], "None");
        let template = &set["spec"]["template"];
        assert_eq!(template["metadata"]["labels"], service["spec"]["selector"]);
        assert_eq!(template["metadata"]["labels"], set["spec"]["selector"]["matchLabels"]);
        let pod = &template["spec"];
        let container = &pod["containers"][0];
        let ports = |ports: &Value, number: &str| -> Vec<(Value, Value, Value)> {
            let ports = ports.as_array().unwrap().iter();
            ports
                .map(|it| (it["name"].clone(), it[number].clone(), it["protocol"].clone()))
                .collect()
        };
        let exposed = ports(&container["ports"], "containerPort");
        assert_eq!(exposed, ports(&service["spec"]["ports"], "port"), "{role}");
        let mut volumes: Vec<&Value> =
            pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
        if let Some(claims) = set["spec"]["volumeClaimTemplates"].as_array() {
            volumes.extend(claims.iter().map(|claim| &claim["metadata"]["name"]));
        }
        let mounts = container["volumeMounts"].as_array().unwrap();
        assert!(mounts.iter().all(|mount| volumes.contains(&&mount["name"])), "{role}");
        assert_eq!(mounts.len(), volumes.len(), "{role}");
        let mounted = |path: &Path| {
            let mut paths = mounts.iter().filter_map(|mount| mount["mountPath"].as_str());
            paths.any(|mount| path.starts_with(mount))
        };
        let env = container["env"].as_array().unwrap();
        let values = env.iter().filter_map(|it| it["value"].as_str());
        assert!(values.map(Path::new).all(mounted), "{role}");
        let config = Started::of(&format!("{role}-0")).config();
        let disk = config.cluster.member[0].disk.clone();
        let needed = [config.cluster.model, disk];
        assert!(needed.iter().flatten().all(|path| mounted(path)), "{role}");
        assert_eq!(pod["serviceAccountName"], "kvasir");
        let secrets = pod["volumes"].as_array().unwrap().iter();
        let mut secrets = secrets.filter_map(|volume| find(volume, "secretName")?.as_str());
        let own = format!("kvasir-tls-{role}");
        assert!(secrets.clone().any(|name| name == own), "{role}");
        assert!(secrets.all(|name| name == own || !name.starts_with("kvasir-tls")), "{role}");
    }
    let [account, rights, binding] = &objects("access.json")[..] else { panic!("access.json") };
    let rule = json!({
        "apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"],
    });
    assert_eq!(rights["rules"], json!([rule]));
    assert_eq!(binding["roleRef"]["name"], rights["metadata"]["name"]);
    assert_eq!(binding["subjects"][0]["name"], account["metadata"]["name"]);
    assert_eq!(account["metadata"]["name"], "kvasir");
}

#[test]
fn certificates_made_by_the_script_are_those_of_the_pods() {
    let made = tempfile::tempdir().unwrap();
    let make = |days: &str, pods: &[&str]| {
        let mut command = Command::new("/bin/sh");
        command.arg(folder().join("certificates.sh")).arg(made.path()).args(pods);
        let status = command.env("CERTIFICATE_DAYS", days).status();
        assert!(status.unwrap().success(), "the script needs openssl");
    };
    make("365", &["decode-0", "router-12"]);
    make("20", &["decode-2"]);
    let read = |pod: &str| fs::read(made.path().join(format!("decode/{pod}.pem"))).unwrap();
    let before = ["decode-0", "decode-2"].map(read);
    make("365", &["decode-0", "decode-1", "decode-2"]);
    let after = ["decode-0", "decode-2"].map(read);
    assert_eq!(after[0], before[0], "what is good for long stays");
    assert_ne!(after[1], before[1], "what ends soon is made anew");
    for pod in ["decode-0", "decode-1", "decode-2", "router-12"] {
        let tls = made.path().join(pod.split_once('-').unwrap().0);
        let files = IdentityFiles {
            authority: tls.join("ca.pem"),
            certificate: tls.join(format!("{pod}.pem")),
            key: tls.join(format!("{pod}.key")),
        };
        let member = Identity::load(files).unwrap().member().clone();
        let role = pod.split_once('-').unwrap().0;
        assert_eq!((member.name(), member.role()), (pod, MemberRole::parse(role).unwrap()));
    }
    let roles =
        ["decode", "router"].map(|role| fs::read_dir(made.path().join(role)).unwrap().count());
    assert_eq!(
        roles,
        [7, 3],
        "the authority's certificate, and two files for each pod of the role"
    );
}
