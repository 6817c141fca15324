//! `setup`: the steps that prepare a host, each looking first.

use std::path::PathBuf;

use runtime_host::cgroup;
use runtime_host::lock::{Lock, LockError};

use super::kvm::{By, Prober};
use super::pool::Found;
use super::{
    Base, CGROUP_PARENT, EngineChoice, Firecracker, Guest, Kind, Pool, PrepareError, Progress, Qemu, Runsc, base,
    kernel, kvm, make_private_dir, packages,
};

#[derive(Debug, Clone)]
pub struct SetupOptions {
    pub data_dir: PathBuf,
    pub engine: EngineChoice,
    /// Look and report; change nothing.
    pub check_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Was so already.
    Already(String),
    /// Was made so now.
    Changed(String),
    /// Would be made so without `check_only`.
    Would(String),
    /// Stands in the way; only with `check_only`, otherwise it is the error.
    Blocked(String),
}

impl Outcome {
    pub fn text(&self) -> &str {
        match self {
            Self::Already(text) | Self::Changed(text) | Self::Would(text) | Self::Blocked(text) => text,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepReport {
    pub name: &'static str,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupReport {
    /// The engine that was chosen.
    pub engine: &'static str,
    pub data_dir: PathBuf,
    pub steps: Vec<StepReport>,
}

impl SetupReport {
    /// Did anything change?
    pub fn changed(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.outcome, Outcome::Changed(_)))
    }

    /// Is the host ready now?
    pub fn ready(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.outcome, Outcome::Already(_) | Outcome::Changed(_)))
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Rights,
    Kernel,
    Packages,
    Pool,
    Image,
    Guest,
    Kvm,
    Cgroups,
}

impl Step {
    /// In the order in which one needs the other.
    const GVISOR: &[Self] = &[Self::Rights, Self::Kernel, Self::Packages, Self::Pool, Self::Image, Self::Cgroups];
    const MICROVM: &[Self] =
        &[Self::Rights, Self::Kernel, Self::Packages, Self::Pool, Self::Image, Self::Guest, Self::Kvm, Self::Cgroups];

    fn all(engine: Kind) -> &'static [Self] {
        match engine {
            Kind::Gvisor => Self::GVISOR,
            Kind::Firecracker | Kind::Qemu => Self::MICROVM,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rights => "rights",
            Self::Kernel => "kernel",
            Self::Packages => "packages",
            Self::Pool => "disk pool",
            Self::Image => "base image",
            Self::Guest => "microVM kernel",
            Self::Kvm => "kvm",
            Self::Cgroups => "control groups",
        }
    }

    fn why(self, engine: Kind) -> &'static str {
        match self {
            Self::Rights => "mounts, control groups and the sandboxes' helpers need root",
            Self::Kernel => "disks are btrfs subvolumes with simple quotas on a loop device",
            Self::Packages if engine == Kind::Qemu => {
                "QEMU runs the sandboxes, mmdebstrap and btrfs-progs make their disks"
            }
            Self::Packages if engine == Kind::Firecracker => {
                "Firecracker runs the sandboxes, mmdebstrap and btrfs-progs make their disks"
            }
            Self::Packages => "gVisor runs the sandboxes, mmdebstrap and btrfs-progs make their disks",
            Self::Guest => "each sandbox boots Debian's kernel for virtual machines, and the base image as a disk",
            Self::Kvm if engine == Kind::Firecracker => "a guest is booted to find out whether KVM runs one here",
            Self::Kvm => "a guest is booted to find out whether KVM runs one here; otherwise microVMs are emulated",
            Self::Pool => "each sandbox's disk is a copy-on-write clone with a limit of its own",
            Self::Image => "the Debian 12 system every sandbox starts from; built once, takes two to four minutes",
            Self::Cgroups => "they limit and measure each sandbox's memory, CPU and processes",
        }
    }
}

/// Prepares the host. Safe to repeat, and to run again after it was interrupted anywhere.
pub async fn setup(options: SetupOptions, progress: &dyn Progress) -> Result<SetupReport, PrepareError> {
    let engine = options.engine.resolve(&options.data_dir)?;
    let mut run = Run { options, engine, progress, pool: None, base: None, guest: None, lock: None };
    let mut steps = Vec::new();
    for &step in Step::all(engine) {
        progress.step(step.name(), step.why(engine));
        let outcome = match run.take(step).await {
            Ok(outcome) => outcome,
            Err(e) if run.options.check_only => Outcome::Blocked(with_causes(&e)),
            Err(e) => return Err(e),
        };
        progress.done(step.name(), outcome.text());
        steps.push(StepReport { name: step.name(), outcome });
    }
    Ok(SetupReport { engine: engine.name(), data_dir: run.options.data_dir, steps })
}

struct Run<'a> {
    options: SetupOptions,
    engine: Kind,
    progress: &'a dyn Progress,
    pool: Option<Pool>,
    base: Option<Base>,
    guest: Option<Guest>,
    /// Held to the end: two setups of one data directory would sweep each other's work.
    lock: Option<Lock>,
}

impl Run<'_> {
    async fn take(&mut self, step: Step) -> Result<Outcome, PrepareError> {
        match step {
            Step::Rights => self.rights(),
            Step::Kernel => kernel::check().map(|()| Outcome::Already(format!("Linux {}", kernel::release()))),
            Step::Packages => self.packages().await,
            Step::Pool => self.pool(),
            Step::Image => self.image().await,
            Step::Guest => self.guest().await,
            Step::Kvm => self.kvm().await,
            Step::Cgroups => self.cgroups(),
        }
    }

    fn rights(&mut self) -> Result<Outcome, PrepareError> {
        if !rustix::process::geteuid().is_root() {
            return Err(PrepareError::NotRoot);
        }
        if !self.options.check_only {
            self.options.data_dir = make_private_dir(&self.options.data_dir)?;
            let path = self.options.data_dir.join("setup.lock");
            self.lock = Some(Lock::acquire(&path).map_err(|e| match e {
                LockError::Held { .. } => PrepareError::SetupRunning(e),
                LockError::File { step, path, source } => PrepareError::Io { step, path, source },
            })?);
        } else if let Ok(path) = std::fs::canonicalize(&self.options.data_dir) {
            self.options.data_dir = path;
        }
        Ok(Outcome::Already("root".into()))
    }

    async fn packages(&self) -> Result<Outcome, PrepareError> {
        let missing = packages::missing(self.engine);
        let absent = |e: &dyn std::error::Error| PrepareError::Packages { what: with_causes(e) };
        // No package brings it, so nothing is installed for its sake before it is there.
        if self.engine == Kind::Firecracker {
            let found = Firecracker::find().map_err(|e| absent(&e))?;
            if missing.is_empty() {
                return Ok(Outcome::Already(format!("Firecracker {}, mmdebstrap, btrfs-progs", found.version)));
            }
        }
        if missing.is_empty() && self.engine == Kind::Qemu {
            let qemu = Qemu::find().map_err(|e| absent(&e))?;
            return Ok(Outcome::Already(format!("QEMU {}, mmdebstrap, btrfs-progs", qemu.version)));
        }
        if missing.is_empty() {
            let runsc = Runsc::find().map_err(|e| PrepareError::Packages { what: e.to_string() })?;
            if !runsc.urpc_tested {
                let note =
                    format!("runsc {} is not the tested release; sandboxes start a little slower", runsc.version);
                self.progress.note(&note);
            }
            return Ok(Outcome::Already(format!("runsc {}, mmdebstrap, btrfs-progs", runsc.version)));
        }
        let names: Vec<&str> = missing.iter().map(|w| w.name).collect();
        let names = names.join(", ");
        if self.options.check_only {
            return Ok(Outcome::Would(format!("install {names}")));
        }
        for wanted in &missing {
            self.progress.note(&format!("{} is missing or too old; it {}", wanted.name, wanted.why));
        }
        packages::install(&self.options.data_dir, self.engine, &missing, self.progress).await?;
        Ok(Outcome::Changed(format!("installed {names}")))
    }

    fn pool(&mut self) -> Result<Outcome, PrepareError> {
        let data_dir = &self.options.data_dir;
        let at = data_dir.join("pool");
        let found = Found::look(data_dir)?;
        if self.options.check_only {
            return Ok(match found {
                Found::Mounted | Found::Shared(_) if at.join("root").is_dir() => {
                    self.pool = Pool::open(data_dir)?;
                    Outcome::Already(format!("at {}", at.display()))
                }
                Found::Shared(_) => Outcome::Would(format!("make {} on the btrfs there is", at.display())),
                Found::Mounted | Found::Image => Outcome::Would(format!("mount it at {}", at.display())),
                Found::Nothing => Outcome::Would(format!("make {} and mount it", data_dir.join("pool.img").display())),
            });
        }
        let fresh = !matches!(found, Found::Mounted | Found::Shared(_)) || !at.join("root").is_dir();
        let pool = Pool::create(data_dir)?;
        pool.room().map_err(|e| PrepareError::Pool { what: e.to_string() })?;
        pool.forget_stale_quotas()?;
        self.pool = Some(pool);
        let text = match found {
            Found::Shared(root) => format!("at {}, part of the btrfs at {}", at.display(), root.display()),
            _ => format!("at {}", at.display()),
        };
        Ok(if fresh { Outcome::Changed(text) } else { Outcome::Already(text) })
    }

    async fn image(&mut self) -> Result<Outcome, PrepareError> {
        let digest = runtime_images::base::digest();
        let short = &digest[..12];
        let Some(pool) = &self.pool else { return Ok(Outcome::Would(format!("build {short}"))) };
        if self.options.check_only {
            // Finding may clone a neighbour's image, so looking has to do without.
            let path = pool.base_dir().join(&digest);
            return Ok(if path.is_dir() {
                self.base = Some(Base { digest: digest.clone(), path });
                Outcome::Already(short.to_owned())
            } else {
                Outcome::Would(format!("build {short}"))
            });
        }
        let swept = base::sweep(pool)?;
        if swept > 0 {
            self.progress.note("removed what an interrupted build had left");
        }
        let present = pool.base_dir().join(&digest).is_dir();
        if let Some(base) = Base::find(pool)? {
            let text = format!("{short} at {}", base.path.display());
            self.base = Some(base);
            return Ok(if present && swept == 0 { Outcome::Already(text) } else { Outcome::Changed(text) });
        }
        let base = Base::build(&self.options.data_dir, pool, self.progress).await?;
        let text = format!("{short} at {}", base.path.display());
        self.base = Some(base);
        Ok(Outcome::Changed(text))
    }

    async fn guest(&mut self) -> Result<Outcome, PrepareError> {
        let (Some(pool), Some(base)) = (&self.pool, &self.base) else {
            return Ok(Outcome::Would("fetch a kernel and write the base image as a disk".into()));
        };
        if self.options.check_only {
            self.guest = Guest::own(pool, base);
            let text = self.guest.as_ref().map(|guest| format!("Linux {}", guest.meta.kernel));
            return Ok(text.map_or_else(|| Outcome::Would("fetch a kernel".into()), Outcome::Already));
        }
        let swept = Guest::sweep(pool);
        let found = Guest::find(pool, base)?;
        let built = found.is_none();
        let guest = match found {
            Some(guest) => guest,
            None => Guest::build(&self.options.data_dir, pool, base, self.progress).await?,
        };
        let text = format!("Linux {}", guest.meta.kernel);
        self.guest = Some(guest);
        Ok(if built || swept { Outcome::Changed(text) } else { Outcome::Already(text) })
    }

    async fn kvm(&mut self) -> Result<Outcome, PrepareError> {
        let Some(guest) = self.guest.clone() else { return Ok(Outcome::Would("boot a guest under KVM".into())) };
        if self.options.check_only {
            let by = if self.engine == Kind::Firecracker { By::Firecracker } else { By::Qemu };
            let known = kvm::known(&self.options.data_dir, by);
            let would = || Outcome::Would("boot a guest under KVM".into());
            return Ok(known.map_or_else(would, |answer| Outcome::Already(answer.words)));
        }
        let (data_dir, engine) = (self.options.data_dir.clone(), self.engine);
        let asked = tokio::task::spawn_blocking(move || {
            let absent = |e: &dyn std::error::Error| PrepareError::Packages { what: with_causes(e) };
            let prober = match engine {
                Kind::Firecracker => Prober::Firecracker(Firecracker::find().map_err(|e| absent(&e))?),
                Kind::Gvisor | Kind::Qemu => Prober::Qemu(Qemu::find().map_err(|e| absent(&e))?),
            };
            kvm::ask_again(&data_dir, &prober, &guest)
        });
        let answer =
            asked.await.map_err(|e| PrepareError::Packages { what: format!("the probe broke off: {e}") })??;
        if self.engine == Kind::Firecracker && !answer.proven {
            return Err(PrepareError::NoKvm { words: answer.words });
        }
        Ok(Outcome::Already(answer.words))
    }

    fn cgroups(&self) -> Result<Outcome, PrepareError> {
        let layout = cgroup::detect()?;
        let there = layout.has_parent(CGROUP_PARENT);
        if there {
            return Ok(Outcome::Already(layout.describe()));
        }
        if self.options.check_only {
            return Ok(Outcome::Would(format!("make the group {CGROUP_PARENT} in {}", layout.describe())));
        }
        layout.prepare_parent(CGROUP_PARENT)?;
        Ok(Outcome::Changed(layout.describe()))
    }
}

/// An error with its causes, on one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
