//! The type probe: does the signature of a job or of a terminal write hold a raw handle?
//!
//! The macros ask about *types*, not about names: an alias, a renamed import or an `Arc` hides nothing, and a domain
//! type that happens to be called `Transaction` passes. The answer comes out of method lookup: [`probe`] returns the
//! first of a chain of stages, each of which has an inherent `verdict` for the types that its one trait covers and
//! dereferences to the next. The compiler takes the first that applies, so nothing has to be known about types that no
//! stage covers.

use std::{marker::PhantomData, ops::BitOr, ops::Deref};

use sqlx::{Acquire, ConnectOptions, Connection, Executor};

/// A type that reaches the database past the fence: a pool, a connection, a transaction, or what gives one away.
///
/// A `#[fenced_job]` or a `#[terminal_write]` that takes such a type does not compile, whether it stands there by
/// itself, by reference, or inside `Box`, `Rc`, `Arc`, `Option`, `Result`, `Vec`, a map, a slice, an array, a tuple, a
/// cell or a lock (of std or tokio). The handles of sqlx are covered already.
///
/// The probe cannot see into the fields of a struct. Implement the trait for the state types of your service that hold
/// a pool, and jobs that take them are refused as well:
///
/// ```
/// struct AppState {
///     pool: sqlx::Pool<sqlx::Sqlite>,
/// }
///
/// impl fence_runtime::RawHandle for AppState {}
/// ```
///
/// ```compile_fail,E0277
/// # struct AppState;
/// # impl fence_runtime::RawHandle for AppState {}
/// use fence_runtime::{Error, FenceCtx, fenced_job};
///
/// #[fenced_job(lease = "admin:cleanup")]
/// async fn clean_up(ctx: &FenceCtx<sqlx::Sqlite>, state: &AppState) -> Result<(), Error> {
///     Ok(())
/// }
/// ```
pub trait RawHandle {}

impl<DB: sqlx::Database> RawHandle for sqlx::Pool<DB> {}
impl<DB: sqlx::Database> RawHandle for sqlx::pool::PoolOptions<DB> {}
impl<DB: sqlx::Database> RawHandle for sqlx::pool::PoolConnection<DB> {}
impl<DB: sqlx::Database> RawHandle for sqlx::pool::MaybePoolConnection<'_, DB> {}
impl<DB: sqlx::Database> RawHandle for sqlx::Transaction<'_, DB> {}

#[cfg(feature = "postgres")]
mod postgres {
    use std::ops::DerefMut;

    use sqlx::postgres::{PgAdvisoryLockGuard, PgConnectOptions, PgConnection, PgCopyIn, PgListener};

    use super::RawHandle;

    impl RawHandle for PgConnection {}
    impl RawHandle for PgConnectOptions {}
    impl RawHandle for PgListener {}
    impl<C: AsMut<PgConnection>> RawHandle for PgAdvisoryLockGuard<C> {}
    impl<C: DerefMut<Target = PgConnection>> RawHandle for PgCopyIn<C> {}
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use sqlx::sqlite::{LockedSqliteHandle, SqliteConnectOptions, SqliteConnection};

    use super::RawHandle;

    impl RawHandle for SqliteConnection {}
    impl RawHandle for SqliteConnectOptions {}
    impl RawHandle for LockedSqliteHandle<'_> {}
}

/// A tuple with a raw handle at position `N`, or a wrapper of one. An implementation of [`RawHandle`] per position
/// would overlap, so position 0 is `RawHandle` itself and the others have a trait each.
pub trait RawAt<const N: usize> {}

/// `T` is a raw handle if what it wraps is one.
macro_rules! see_through {
    ($([$($generics:tt)*] $wrapper:ty;)*) => {$(
        impl<T: RawHandle + ?Sized, $($generics)*> RawHandle for $wrapper {}
        impl<const N: usize, T: RawAt<N> + ?Sized, $($generics)*> RawAt<N> for $wrapper {}
    )*};
    (sized: $([$($generics:tt)*] $wrapper:ty;)*) => {$(
        impl<T: RawHandle, $($generics)*> RawHandle for $wrapper {}
        impl<T: RawAt<N>, $($generics)* const N: usize> RawAt<N> for $wrapper {}
    )*};
}

see_through! {
    [] &T;
    [] &mut T;
    [] *const T;
    [] *mut T;
    [] Box<T>;
    [] std::rc::Rc<T>;
    [] std::rc::Weak<T>;
    [] std::sync::Arc<T>;
    [] std::sync::Weak<T>;
    [] std::cell::Cell<T>;
    [] std::cell::RefCell<T>;
    [] std::cell::Ref<'_, T>;
    [] std::cell::RefMut<'_, T>;
    [] std::sync::Mutex<T>;
    [] std::sync::MutexGuard<'_, T>;
    [] std::sync::RwLock<T>;
    [] std::sync::RwLockReadGuard<'_, T>;
    [] std::sync::RwLockWriteGuard<'_, T>;
    [] tokio::sync::Mutex<T>;
    [] tokio::sync::MutexGuard<'_, T>;
    [] tokio::sync::OwnedMutexGuard<T>;
    [] tokio::sync::RwLock<T>;
    [] tokio::sync::RwLockReadGuard<'_, T>;
    [] tokio::sync::RwLockWriteGuard<'_, T>;
}

see_through! {
    sized:
    [] [T];
    [const LEN: usize,] [T; LEN];
    [] Vec<T>;
    [] std::collections::VecDeque<T>;
    [K, S,] std::collections::HashMap<K, T, S>;
    [K,] std::collections::BTreeMap<K, T>;
    [] Option<T>;
    [E,] Result<T, E>;
    [] std::pin::Pin<T>;
    [] std::cell::OnceCell<T>;
    [] std::sync::OnceLock<T>;
    [F,] std::sync::LazyLock<T, F>;
    [] tokio::sync::OnceCell<T>;
}

/// The element `T` behind `before` makes the tuple raw, whatever stands before and after it.
macro_rules! in_tuple {
    ($raw:path, [$($before:ident)*] [$($after:ident)*]) => {
        impl<$($before,)* T: RawHandle, $($after,)*> $raw for ($($before,)* T, $($after,)*) {}
        in_tuple!(@shorter $raw, [$($before)*] [$($after)*]);
    };
    (@shorter $raw:path, [$($before:ident)*] []) => {};
    (@shorter $raw:path, [$($before:ident)*] [$last:ident $($after:ident)*]) => {
        in_tuple!($raw, [$($before)*] [$($after)*]);
    };
}

in_tuple!(RawHandle, [] [A B C D E]);
in_tuple!(RawAt<1>, [A] [B C D E]);
in_tuple!(RawAt<2>, [A B] [C D E]);
in_tuple!(RawAt<3>, [A B C] [D E]);
in_tuple!(RawAt<4>, [A B C D] [E]);
in_tuple!(RawAt<5>, [A B C D E] []);

/// What the macros ask: `probe::<T>().verdict()`.
#[must_use]
pub fn probe<T: ?Sized>() -> Probe<T> {
    Probe(PhantomData)
}

/// One stage of the question whether `T` is a raw handle.
pub struct Probe<T: ?Sized, const STAGE: usize = 0>(PhantomData<fn(*const T)>);

macro_rules! stages {
    ($($stage:literal: [$($generics:tt)*] $(where [$($bound:tt)*])?;)*) => {$(
        impl<$($generics)*> Probe<T, $stage> $(where $($bound)*)? {
            /// It is one.
            #[must_use]
            pub fn verdict(&self) -> Verdict<T, Raw> {
                Verdict::new()
            }
        }

        impl<T: ?Sized> Deref for Probe<T, $stage> {
            type Target = Probe<T, { $stage + 1 }>;

            fn deref(&self) -> &Self::Target {
                &Probe(PhantomData)
            }
        }
    )*};
}

// The macros strip references before they ask, so the traits of sqlx, which are implemented for references, are asked
// about those too. Asking traits covers generic parameters by their bounds, `impl PgExecutor<'_>`, `DB::Connection`,
// and whatever handles other crates build on sqlx.
stages! {
    0: [T: RawHandle + ?Sized];
    1: ['c, T: Executor<'c>];
    2: ['c, T: 'c] where [&'c T: Executor<'c>];
    3: ['c, T: 'c] where [&'c mut T: Executor<'c>];
    4: ['c, T: Acquire<'c>];
    5: ['c, T: 'c] where [&'c T: Acquire<'c>];
    6: ['c, T: 'c] where [&'c mut T: Acquire<'c>];
    7: [T: Connection];
    8: [T: ConnectOptions];
    9: [T: RawAt<1> + ?Sized];
    10: [T: RawAt<2> + ?Sized];
    11: [T: RawAt<3> + ?Sized];
    12: [T: RawAt<4> + ?Sized];
    13: [T: RawAt<5> + ?Sized];
}

impl<T: ?Sized> Probe<T, 14> {
    /// Nothing we know of.
    #[must_use]
    pub fn verdict(&self) -> Verdict<T, Clean> {
        Verdict::new()
    }
}

/// The answer about `T`.
#[allow(clippy::type_complexity)]
pub struct Verdict<T: ?Sized, Answer>(PhantomData<(fn(*const T), Answer)>);

/// The answer for a raw handle.
pub struct Raw;

/// The answer for everything else.
pub struct Clean;

impl<T: ?Sized, Answer> Verdict<T, Answer> {
    fn new() -> Self {
        Self(PhantomData)
    }
}

/// The first raw handle is the one that the message names.
impl<T: ?Sized, U: ?Sized, Answer> BitOr<Verdict<U, Answer>> for Verdict<T, Raw> {
    type Output = Self;

    fn bitor(self, _: Verdict<U, Answer>) -> Self {
        self
    }
}

impl<T: ?Sized, U: ?Sized, Answer> BitOr<Verdict<U, Answer>> for Verdict<T, Clean> {
    type Output = Verdict<U, Answer>;

    fn bitor(self, other: Verdict<U, Answer>) -> Self::Output {
        other
    }
}

/// Compiles only if the answer about `T` was that it is no raw handle.
pub fn admit<T: ?Sized, Answer: Admissible<T>>(_: Verdict<T, Answer>) {}

/// An answer that lets `T` into a signature.
#[diagnostic::on_unimplemented(
    message = "a fenced function must not be given a raw database handle, found `{T}`",
    label = "reaches the database past the fence",
    note = "a job takes its connections from the `FenceCtx`: `ctx.transaction(async |tx| …)`, `ctx.read()`",
    note = "a terminal write takes them from the `FencedTx`: `tx.terminal(query)`, `tx.executor()`"
)]
pub trait Admissible<T: ?Sized> {}

#[diagnostic::do_not_recommend]
impl<T: ?Sized> Admissible<T> for Clean {}
