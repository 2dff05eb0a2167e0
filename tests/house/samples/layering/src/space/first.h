#pragma once
int first();
