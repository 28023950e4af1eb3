//! The options of a hand-over.

use crate::config::Config;
use std::fmt;
use std::time::Duration;

/// How an adapter is handed over.
#[derive(Clone, Debug)]
#[must_use = "options have no effect until an adapter is handed over with them"]
pub struct HandOverOptions {
    pub(super) data: Vec<u8>,
    pub(super) timeout: Duration,
    pub(super) pause: Duration,
    pub(super) at: fn(&dyn fmt::Debug),
}

impl Default for HandOverOptions {
    fn default() -> Self {
        Self { data: Vec::new(), timeout: Duration::from_secs(10), pause: Duration::from_secs(2), at: |_| {} }
    }
}

impl HandOverOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Passes bytes of the program to the other process: [`TakenOver::data`](super::TakenOver::data).
    ///
    /// ```
    /// # use ironwarp::hand_over::HandOverOptions;
    /// let options = HandOverOptions::new().data(b"the state of the program");
    /// # let _ = options;
    /// ```
    pub fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    /// Sets how long each step of the other process is waited for while the adapter runs. Defaults to 10 seconds.
    ///
    /// ```
    /// # use ironwarp::hand_over::HandOverOptions;
    /// let options = HandOverOptions::new().timeout(std::time::Duration::from_secs(1));
    /// # let _ = options;
    /// ```
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the maximum time for which the adapter is frozen before it goes on in this process. Defaults to 2 seconds.
    ///
    /// ```
    /// # use ironwarp::hand_over::HandOverOptions;
    /// let options = HandOverOptions::new().pause(std::time::Duration::from_millis(250));
    /// # let _ = options;
    /// ```
    pub const fn pause(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// Sets what is called after each step of the hand-over, for tests.
    #[doc(hidden)]
    pub const fn at(mut self, at: fn(&dyn fmt::Debug)) -> Self {
        self.at = at;
        self
    }
}

/// How an adapter is taken over.
#[derive(Clone, Debug)]
#[must_use = "options have no effect until an adapter is taken over with them"]
pub struct TakeOverOptions {
    pub(super) config: Config,
    pub(super) memory: u64,
    pub(super) timeout: Duration,
    pub(super) at: fn(&dyn fmt::Debug),
}

impl Default for TakeOverOptions {
    fn default() -> Self {
        Self { config: Config::default(), memory: 64 << 30, timeout: Duration::from_secs(10), at: |_| {} }
    }
}

impl TakeOverOptions {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the settings of the adapter. They should be those of the other process: connections keep the terms that they
    /// were made with.
    ///
    /// ```
    /// # use ironwarp::hand_over::TakeOverOptions;
    /// let options = TakeOverOptions::new().config(ironwarp::Config::default().lanes(1));
    /// # let _ = options;
    /// ```
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the maximum number of bytes in all buffers that come from another host. Defaults to 64 GiB. On one host there is no
    /// limit, because buffers are not copied.
    ///
    /// ```
    /// # use ironwarp::hand_over::TakeOverOptions;
    /// let options = TakeOverOptions::new().memory(1 << 30);
    /// # let _ = options;
    /// ```
    pub const fn memory(mut self, limit: u64) -> Self {
        self.memory = limit;
        self
    }

    /// Sets how long each step of the other process is waited for. Defaults to 10 seconds.
    ///
    /// ```
    /// # use ironwarp::hand_over::TakeOverOptions;
    /// let options = TakeOverOptions::new().timeout(std::time::Duration::from_secs(60));
    /// # let _ = options;
    /// ```
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets what is called after each step of the hand-over, for tests.
    #[doc(hidden)]
    pub const fn at(mut self, at: fn(&dyn fmt::Debug)) -> Self {
        self.at = at;
        self
    }
}
