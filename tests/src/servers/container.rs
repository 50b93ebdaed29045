//! One container per test binary, which is gone whatever way the binary ends.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use testcontainers::{
    ContainerAsync, ContainerRequest, GenericImage, ImageExt,
    bollard::models::PortBinding,
    core::{IntoContainerPort, Mount, WaitFor},
    runners::AsyncRunner,
};

/// What a server needs to run in a container.
pub(super) struct Recipe {
    /// Its name in Docker, `name:tag`. The variable, if it is set, names another.
    pub(super) image: &'static str,
    pub(super) variable: &'static str,
    pub(super) port: u16,
    /// What it writes to stderr when it takes connections.
    pub(super) ready: &'static str,
    /// Where its data lives: a tmpfs.
    pub(super) data: &'static str,
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) command: Vec<&'static str>,
}

/// A running container. It must outlive every test: keep it where it is never dropped.
pub(super) struct Running {
    /// The port on 127.0.0.1.
    pub(super) port: u16,
    _container: ContainerAsync<GenericImage>,
    _reaper: Child,
}

/// Long enough to pull an image.
const START: Duration = Duration::from_secs(300);

/// Starts the container.
///
/// # Errors
/// Why there is none, in one sentence.
pub(super) async fn start(recipe: Recipe) -> Result<Running, String> {
    let Recipe { image, variable, port, ready, data, env, command } = recipe;
    let image = std::env::var(variable).unwrap_or_else(|_| image.into());
    let (image_name, tag) = image.rsplit_once(':').ok_or_else(|| format!("{variable} must be `name:tag`"))?;
    // Whoever runs the tests may mark what is theirs.
    let label = std::env::var("FENCE_TEST_LABEL").unwrap_or_else(|_| std::process::id().to_string());
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("fence-tests-{}-{:08x}-{number}", std::process::id(), super::run_id());
    // Before the container exists, so that no moment is left in which a kill leaks it.
    let reaper = reaper(&name)?;
    let mut request: ContainerRequest<GenericImage> = GenericImage::new(image_name, tag)
        .with_exposed_port(port.tcp())
        .with_wait_for(WaitFor::message_on_stderr(ready))
        .with_container_name(name)
        .with_label("fence-tests", label)
        .with_mount(Mount::tmpfs_mount(data))
        .with_startup_timeout(START)
        .with_cmd(command)
        .with_host_config_modifier(move |host| {
            // Published on the loopback only, at a free port: no test server is reachable from outside.
            let binding = PortBinding { host_ip: Some("127.0.0.1".into()), host_port: None };
            host.publish_all_ports = Some(false);
            host.port_bindings = Some([(format!("{port}/tcp"), Some(vec![binding]))].into());
        });
    for (key, value) in env {
        request = request.with_env_var(key, value);
    }
    let container = match tokio::time::timeout(START, request.start()).await {
        Ok(started) => started.map_err(|error| format!("no container of {image} ({error})"))?,
        Err(_) => return Err(format!("no container of {image} within {START:?}")),
    };
    let port = container
        .get_host_port_ipv4(port)
        .await
        .map_err(|error| format!("the container of {image} has no published port ({error})"))?;
    Ok(Running { port, _container: container, _reaper: reaper })
}

/// A child that removes the container when this process ends, by exit, abort or SIGKILL alike: the kernel closes the
/// pipe that the child reads. Neither destructors nor exit hooks can do that. In a process group of its own, Ctrl-C
/// does not reach it.
fn reaper(name: &str) -> Result<Child, String> {
    let client = ["docker", "podman"].into_iter().find_map(in_path).ok_or("no `docker` command in PATH")?;
    let mut command = Command::new("sh");
    // The container may still be in the making when its maker is killed: ask for it a little longer.
    let script = r#"cat >/dev/null; for i in 1 2 3; do [ -z "$("$0" rm -f -v "$1")" ] || exit 0; sleep 1; done"#;
    command.arg("-c").arg(script).arg(client).arg(name);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    command.spawn().map_err(|error| format!("no `sh` to clean up after the container ({error})"))
}

fn in_path(program: &str) -> Option<PathBuf> {
    let file = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(&file)).find(|path| path.is_file())
}
