int nowhere;
