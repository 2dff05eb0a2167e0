inline constexpr unsigned kLayoutVersion = 7;
