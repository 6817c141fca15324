/** The version of this package, as it is sent with every request. */
export const VERSION = "0.1.0";
