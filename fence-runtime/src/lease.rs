//! The words of the protocol: lease names, owner tokens, fencing tokens, and what a job asks of its lease.

use std::{borrow::Cow, fmt, num::NonZeroI64, str::FromStr, time::Duration};

use crate::{
    Backend,
    backend::Protocol,
    error::{Error, ErrorKind},
};

/// The longest lease name, in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 190;
/// The shortest time to live that a lease may have.
pub const MIN_TTL: Duration = Duration::from_millis(100);
/// The longest time to live that a lease may have: a crashed holder blocks its successors for this long.
pub const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// The time to live of a lease when neither the job nor the [`Fence`](crate::Fence) names one.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The name of a lease: 1–190 bytes of UTF-8, without control characters and without white space at either end.
///
/// Names are compared as bytes on every database: case, accents and Unicode normal forms make different leases.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Cow<'static, str>);

impl LeaseName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] that says which rule the name breaks.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Result<Self, Error> {
        let name = name.into();
        match broken_rule(&name) {
            None => Ok(Self(name)),
            Some(rule) => Err(Error::new(ErrorKind::Config, format!("lease name {name:?} {rule}"))),
        }
    }

    /// The name as it stands in the database.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn broken_rule(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("is empty: a lease needs a name such as \"group:job\"".into());
    }
    if name.len() > MAX_NAME_BYTES {
        return Some(format!("has {} bytes: at most {MAX_NAME_BYTES} are allowed", name.len()));
    }
    if let Some(c) = name.chars().find(|c| c.is_control()) {
        return Some(format!("contains the control character {c:?}: remove it"));
    }
    if name.trim() != name {
        return Some("begins or ends with white space: remove it".into());
    }
    None
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for LeaseName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name.to_owned())
    }
}

impl AsRef<str> for LeaseName {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

/// Who holds a lease: a fresh UUID for every acquisition, never one per process or host.
///
/// Two acquisitions of one process are two holders, so a late call of the first cannot pass for the second.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerToken(uuid::Uuid);

impl OwnerToken {
    pub(crate) fn fresh() -> Self {
        Self(uuid::Uuid::new_v4())
    }
}

impl fmt::Display for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.as_hyphenated(), f)
    }
}

impl fmt::Debug for OwnerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The fencing token of one term of a lease: at least 1, raised by every takeover, never reset, never a timestamp.
///
/// It cannot be made by hand: the only source is the database, through a [`FenceCtx`](crate::FenceCtx) or a
/// [`FencedTx`](crate::FencedTx). It binds into a query as a 64-bit integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FenceToken(NonZeroI64);

impl FenceToken {
    pub(crate) fn from_database(token: i64) -> Result<Self, Error> {
        match NonZeroI64::new(token) {
            Some(token) if token.get() > 0 => Ok(Self(token)),
            _ => Err(Error::new(
                ErrorKind::Schema,
                format!(
                    "the lease table holds the fencing token {token}: tokens start at 1; somebody wrote the row by hand"
                ),
            )),
        }
    }

    /// The number, for a sink that can compare it.
    #[must_use]
    pub fn get(self) -> i64 {
        self.0.get()
    }
}

impl fmt::Display for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FenceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<FenceToken> for i64 {
    fn from(token: FenceToken) -> Self {
        token.get()
    }
}

// Through the protocol and not `where i64: …`, which every generic function that binds a token would have to repeat.
impl<DB: Backend> sqlx::Type<DB> for FenceToken {
    fn type_info() -> DB::TypeInfo {
        DB::Protocol::number_type()
    }

    fn compatible(ty: &DB::TypeInfo) -> bool {
        DB::Protocol::is_number(ty)
    }
}

impl<'q, DB: Backend> sqlx::Encode<'q, DB> for FenceToken {
    fn encode_by_ref(&self, buf: &mut DB::ArgumentBuffer) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
        DB::Protocol::encode_number(self.get(), buf)
    }
}

/// A lease as a type: what a job's context and its fenced transactions are fenced by.
pub trait Lease: Send + Sync + 'static {
    /// The name of this lease.
    ///
    /// # Errors
    /// [`ErrorKind::Config`] when the name breaks a rule of [`LeaseName`].
    fn lease_name(&self) -> Result<LeaseName, Error>;
}

/// The lease of a job whose attribute names it by a string: every such job has the same lease type.
#[derive(Clone, Debug)]
pub struct Untyped {
    name: Cow<'static, str>,
    /// A placeholder of the template that was left empty.
    empty: Option<&'static str>,
}

impl Untyped {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), empty: None }
    }

    pub(crate) fn of_template(name: String, empty: Option<&'static str>) -> Self {
        Self { name: name.into(), empty }
    }
}

impl Lease for Untyped {
    fn lease_name(&self) -> Result<LeaseName, Error> {
        match self.empty {
            None => LeaseName::new(self.name.clone()),
            // It could be the name of another job's lease.
            Some(placeholder) => Err(Error::new(
                ErrorKind::Config,
                format!("lease name {:?}: the value of `{{{placeholder}}}` is empty", self.name),
            )),
        }
    }
}

/// What happens to a job whose lease is lost while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnLost {
    /// The job's future is dropped at its next await.
    #[default]
    Drop,
    /// The job goes on and may watch [`FenceCtx::lost`](crate::FenceCtx::lost); its fenced writes are refused.
    Signal,
}

/// What a job asks of its lease. The attribute's options end up here.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaseOptions {
    pub(crate) ttl: Option<Duration>,
    pub(crate) renew: Option<Duration>,
    pub(crate) wait: Option<Duration>,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) on_lost: OnLost,
}

impl LeaseOptions {
    /// Everything as the [`Fence`](crate::Fence) has it.
    #[must_use]
    pub const fn new() -> Self {
        Self { ttl: None, renew: None, wait: None, max_runtime: None, on_lost: OnLost::Drop }
    }

    /// How long the lease lives without renewal: [`MIN_TTL`] to [`MAX_TTL`].
    #[must_use]
    pub const fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// The time between two renewals: at most a third of the time to live, which is also the default.
    #[must_use]
    pub const fn renew(mut self, every: Duration) -> Self {
        self.renew = Some(every);
        self
    }

    /// How long `run` keeps asking for a lease that somebody else holds before it says that it is contended. Default: not at all.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// For how long the lease is renewed, from when it was acquired: a job that hangs must not hold it for ever. Default: no limit.
    ///
    /// Then the lease is lost: no new fenced transaction begins, and the job is dropped or signalled as on every other loss. The lease is released
    /// when the job's future is gone; where that hangs without an await, others get it when it expires, after one time to live at most.
    #[must_use]
    pub const fn max_runtime(mut self, limit: Duration) -> Self {
        self.max_runtime = Some(limit);
        self
    }

    /// What happens to the job when its lease is lost.
    #[must_use]
    pub const fn on_lost(mut self, on_lost: OnLost) -> Self {
        self.on_lost = on_lost;
        self
    }
}

/// The options with every default filled in and every rule checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renew: Duration,
    pub(crate) wait: Duration,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) on_lost: OnLost,
}

impl Terms {
    pub(crate) fn new(options: LeaseOptions, default_ttl: Duration) -> Result<Self, Error> {
        let ttl = options.ttl.unwrap_or(default_ttl);
        check_ttl(ttl)?;
        let renew = options.renew.unwrap_or(ttl / 3);
        if renew.is_zero() || renew > ttl / 3 {
            return Err(Error::new(
                ErrorKind::Config,
                format!("`renew` ({renew:?}) must be more than zero and at most a third of `ttl` ({ttl:?})"),
            ));
        }
        let LeaseOptions { wait, max_runtime, on_lost, .. } = options;
        if max_runtime.is_some_and(|limit| limit.is_zero()) {
            return Err(Error::new(ErrorKind::Config, "`max_runtime` must be more than zero"));
        }
        Ok(Self { ttl, renew, wait: wait.unwrap_or_default(), max_runtime, on_lost })
    }

    /// How long a try to renew may take, so that there is time for another. Not `renew`: who asks for more renewals than the time to live
    /// needs must not get less time for each, which a slow connection would never keep to.
    pub(crate) fn patience(&self) -> Duration {
        self.ttl / 3
    }
}

pub(crate) fn check_ttl(ttl: Duration) -> Result<(), Error> {
    if ttl < MIN_TTL || ttl > MAX_TTL {
        return Err(Error::new(
            ErrorKind::Config,
            format!("`ttl` ({ttl:?}) must be between {MIN_TTL:?} and {MAX_TTL:?}"),
        ));
    }
    Ok(())
}
